#include "settings.h"

#include <array>
#include <cstdlib>
#include <sstream>

namespace powercut {
namespace {

constexpr std::array<const char*, 6> kNames = {"drain", "sync", "name", "write", "exit", "flush"};

std::string text(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

uint64_t number(const char* name, uint64_t otherwise) {
  const std::string value = text(name);
  return value.empty() ? otherwise : strtoull(value.c_str(), nullptr, 10);
}

std::vector<std::string> parts(const char* name, char separator) {
  std::vector<std::string> found;
  std::istringstream stream(text(name));
  for (std::string part; std::getline(stream, part, separator);) {
    if (!part.empty()) found.push_back(part);
  }
  return found;
}

uint32_t kinds(const std::vector<std::string>& names) {
  uint32_t mask = 0;
  for (const std::string& name : names) {
    for (size_t i = 0; i < kNames.size(); ++i) {
      if (name == kNames[i]) mask |= 1U << i;
    }
  }
  return names.empty() ? ~0U : mask;
}

}  // namespace

const char* name_of(Kind kind) { return kNames[static_cast<size_t>(kind)]; }

Settings read_settings() {
  Settings settings;
  settings.session = text("POWERCUT_SESSION");
  if (settings.session.empty()) return settings;
  settings.roots = parts("POWERCUT_UNDER", ':');
  settings.cut_at = number("POWERCUT_AT", 0);
  settings.cut_after_us = number("POWERCUT_AFTER_US", 0);
  settings.seed = number("POWERCUT_SEED", 0);
  settings.record = number("POWERCUT_RECORD", 0) != 0;
  settings.in_order = text("POWERCUT_NAMES") == "ordered";
  settings.atomic_bytes = number("POWERCUT_ATOMIC", 8);
  settings.site_frames = number("POWERCUT_SITE_FRAMES", 1);
  settings.without = parts("POWERCUT_WITHOUT", '\n');
  settings.points = kinds(parts("POWERCUT_POINTS", ','));
  return settings;
}

}  // namespace powercut
