// The names of a tier's files.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace embstore::ssd_hash {

inline constexpr std::string_view kRecordFilePrefix = "rows-";
inline constexpr std::string_view kCheckpointPrefix = "checkpoint-";
inline constexpr std::string_view kFileSuffix = ".ssdhash";
inline constexpr std::string_view kUnfinishedSuffix = ".new";

// Ten digits at least, so that names sort as numbers do.
inline std::string file_name(std::string_view prefix, uint64_t number) {
  std::string digits = std::to_string(number);
  if (digits.size() < 10) digits.insert(0, 10 - digits.size(), '0');
  return std::string(prefix) + digits + std::string(kFileSuffix);
}

// Nothing where `name` isn't such a name.
inline std::optional<uint64_t> number_in(std::string_view name, std::string_view prefix) {
  if (name.size() <= prefix.size() + kFileSuffix.size() || !name.starts_with(prefix) ||
      !name.ends_with(kFileSuffix)) {
    return std::nullopt;
  }
  name.remove_prefix(prefix.size());
  name.remove_suffix(kFileSuffix.size());
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(name.begin(), name.end(), number);
  if (error != std::errc() || end != name.end()) return std::nullopt;
  return number;
}

// A file that was being made, of which nobody knows yet.
inline bool is_unfinished(std::string_view name, std::string_view prefix) {
  if (!name.ends_with(kUnfinishedSuffix)) return false;
  name.remove_suffix(kUnfinishedSuffix.size());
  return number_in(name, prefix).has_value();
}

}  // namespace embstore::ssd_hash
