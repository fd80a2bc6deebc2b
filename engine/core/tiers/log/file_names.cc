#include "tiers/log/file_names.h"

#include <charconv>
#include <filesystem>
#include <system_error>

#include "errors/error.h"

namespace embstore::log {

namespace fs = std::filesystem;

std::string numbered_name(std::string_view stem, uint64_t number, std::string_view ending) {
  std::string digits = std::to_string(number);
  if (digits.size() < 10) digits.insert(0, 10 - digits.size(), '0');
  return std::string(stem) + digits + std::string(ending);
}

std::optional<uint64_t> number_in(std::string_view name, std::string_view stem, std::string_view ending) {
  if (!name.starts_with(stem)) return std::nullopt;
  uint64_t number = 0;
  std::from_chars(name.data() + stem.size(), name.data() + name.size(), number);
  return name == numbered_name(stem, number, ending) ? std::optional(number) : std::nullopt;
}

std::string directory_of(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return (parent.empty() ? fs::path(".") : parent).string();
}

bool exists(const std::string& path) {
  std::error_code code;
  const fs::file_status status = fs::status(path, code);
  if (code && status.type() != fs::file_type::not_found) {
    refuse(path, "can't be looked at: " + code.message());
  }
  return fs::exists(status);
}

void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorKind::kStorage, path + ": " + why);
}

void refuse_needed(const std::string& path, const std::string& why) {
  refuse(path, why +
                   ", and a checkpoint needs it; put it back as it was, or remove the files of the variable "
                   "to start without their rows");
}

}  // namespace embstore::log
