#include "cut.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "chance.h"
#include "complaint.h"
#include "json.h"
#include "system_calls.h"
#include "view.h"

namespace powercut {
namespace {

// Chooses how much reaches the medium: some faults show only if nearly nothing does, and some only if nearly
// all does.
double choose_share(Chance& chance) {
  constexpr std::array<double, 8> kShares = {0, 0, 0.1, 0.5, 0.5, 0.5, 0.9, 0.9};
  return kShares[chance.below(kShares.size())];
}

// Chooses the share of torn units among those that differ: often all, since a line often holds one value.
double choose_torn_share(Chance& chance) {
  constexpr std::array<double, 4> kShares = {0.1, 0.5, 1, 1};
  return kShares[chance.below(kShares.size())];
}

struct Counts {
  uint64_t differ = 0, lost = 0, torn = 0;  // lines, or pages of a file that isn't mapped
};

// Mixes the program's version into the medium's, unit by unit; torn units word by word.
class Mixer {
 public:
  Mixer(Chance& chance, double share, size_t atomic_bytes)
      : chance_(chance), share_(share), torn_share_(choose_torn_share(chance)), atomic_(atomic_bytes) {}

  void mix(std::byte* medium, const std::byte* view, size_t unit, size_t word) {
    for (size_t at = 0; at < kPage; at += unit) mix_unit(medium + at, view + at, unit, std::min(unit, word));
  }
  void mix_lines(std::byte* medium, const std::byte* view) { mix(medium, view, kLine, atomic_); }
  // The kernel writes pages. A disk that loses power has written whole sectors of them.
  void mix_sectors(std::byte* medium, const std::byte* view) { mix(medium, view, kPage, kSector); }

  Counts counts;

 private:
  void mix_unit(std::byte* medium, const std::byte* view, size_t unit, size_t word) {
    if (std::memcmp(medium, view, unit) == 0) return;
    ++counts.differ;
    if (word < unit && share_ > 0 && chance_.happens(torn_share_)) {
      bool some = false, all = true;
      for (size_t at = 0; at < unit; at += word) {
        if (std::memcmp(medium + at, view + at, word) == 0) continue;
        const bool reaches = chance_.happens(0.5);
        if (reaches) std::memcpy(medium + at, view + at, word);
        some = some || reaches;
        all = all && reaches;
      }
      counts.torn += some && !all ? 1 : 0;
      counts.lost += some ? 0 : 1;
    } else if (chance_.happens(share_)) {
      std::memcpy(medium, view, unit);
    } else {
      ++counts.lost;
    }
  }

  Chance& chance_;
  double share_;
  double torn_share_;
  size_t atomic_;
};

// The size that a file has after the cut, among all that it had. From `frozen_from` on, the program's bytes
// can't have reached the medium, because the program cut the file off there and the medium missed that.
struct Size {
  uint64_t bytes;
  uint64_t frozen_from = UINT64_MAX;
};

Size choose_size(MediumFile& file, Chance& chance, double share) {
  const std::vector<uint64_t>& sizes = file.sizes();
  size_t first = 0, last_cut = 0;
  uint64_t lowest = UINT64_MAX;
  for (size_t i = 1; i < sizes.size(); ++i) {
    if (sizes[i] >= sizes[i - 1]) continue;
    if (first == 0) first = i;
    last_cut = i;
    lowest = std::min(lowest, sizes[i]);
  }
  const auto choose = [&](size_t begin, size_t end) {  // the ends are likelier than sizes between them
    if (end - begin > 2 && chance.happens(0.3)) return sizes[begin + chance.below(end - begin)];
    return chance.happens(share) ? sizes[end - 1] : sizes[begin];
  };
  if (first == 0) return {choose(0, sizes.size())};
  if (!chance.happens(share)) return {choose(0, first), lowest};
  file.cut_off(lowest);
  return {choose(last_cut, sizes.size())};
}

class Description {
 public:
  Description(Computer& computer, const Moment& moment)
      : computer_(computer),
        chance_(computer.settings().seed, moment.point),
        share_(choose_share(chance_)),
        mixer_(chance_, share_, computer.settings().atomic_bytes) {
    const std::string pages = computer.settings().session + "/cut.pages";
    pages_ = system_calls::open(pages.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    computer.flushes.settle(chance_, share_);
    json_.open('{').pair("point", moment.point).pair("kind", moment.kind).pair("function", moment.function);
    json_.list("frames", moment.stack);
    computer.names.describe(json_, computer.names.choose(chance_, choose_share(chance_)));
    describe_files();
    json_.pair("differing", mixer_.counts.differ)
        .pair("lost", mixer_.counts.lost)
        .pair("torn", mixer_.counts.torn)
        .close('}');
    system_calls::close(pages_);
    if (failed_ || pages_ < 0 || !json_.write(computer.settings().session + "/cut.json")) {
      complain(computer.settings().session, computer.settings().session + ": can't be written");
    }
  }

 private:
  void describe_files() {
    std::vector<MediumFile*> files;
    for (const auto& [id, file] : computer_.files) files.push_back(file.get());
    // Sorts by the order in which files were first followed, which is the same in every run.
    std::sort(files.begin(), files.end(),
              [](const auto* a, const auto* b) { return a->number() < b->number(); });
    json_.key("files").open('[');
    for (MediumFile* file : files) describe_file(*file);
    json_.close(']');
  }

  void describe_file(MediumFile& file) {
    View view(file.path());
    file.note_size();
    const Size size = choose_size(file, chance_, share_);
    const uint64_t count = std::max<uint64_t>((view.size() + kPage - 1) / kPage, file.page_count());
    std::array<std::byte, kPage> seen, medium, possible;
    json_.open('{').pair("root", file.root()).pair("id", file.id()).pair("size", size.bytes);
    json_.key("pages").open('[');
    for (uint64_t number = 0; number < count; ++number) {
      const bool has_data = view.read(number, seen);
      const Page* kept = file.page(number * kPage);
      if (!has_data && kept == nullptr) continue;
      const std::byte* now = has_data ? seen.data() : kZeros.data();
      const std::byte* before = kept == nullptr ? kZeros.data() : kept->bytes.data();
      if (std::memcmp(now, before, kPage) == 0) continue;
      std::memcpy(medium.data(), before, kPage);
      possible = medium;
      std::memcpy(possible.data(), now,
                  std::min<uint64_t>(kPage, size.frozen_from - std::min(size.frozen_from, number * kPage)));
      file.mapped ? mixer_.mix_lines(medium.data(), possible.data())
                  : mixer_.mix_sectors(medium.data(), possible.data());
      if (std::memcmp(medium.data(), now, kPage) == 0) continue;
      json_.value(number);
      failed_ = !system_calls::write_all(pages_, medium.data(), kPage) || failed_;
    }
    json_.close(']').close('}');
  }

  Computer& computer_;
  Chance chance_;
  double share_;
  Mixer mixer_;
  Json json_;
  int pages_;
  bool failed_ = false;
};

}  // namespace

void describe_cut(Computer& computer, const Moment& moment) {
  const Description description(computer, moment);
}

}  // namespace powercut
