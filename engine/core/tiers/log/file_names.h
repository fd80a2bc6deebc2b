// The names of a table's files, and errors that name one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace embstore::log {

// Ends the name of a file that is being made, of which nobody knows yet.
inline constexpr std::string_view kUnfinished = ".new";

// A stem, a number of ten digits or more, so that names sort as numbers do, and an ending.
std::string numbered_name(std::string_view stem, uint64_t number, std::string_view ending);
// Nothing where `name` isn't such a name.
std::optional<uint64_t> number_in(std::string_view name, std::string_view stem, std::string_view ending);

// The one that has the name `path`.
std::string directory_of(const std::string& path);
// Throws Error(kStorage) where the system doesn't say.
bool exists(const std::string& path);

// Throws Error(kStorage): "PATH: WHY"; and where a checkpoint needs the file, with what to do.
[[noreturn]] void refuse(const std::string& path, const std::string& why);
[[noreturn]] void refuse_needed(const std::string& path, const std::string& why);

}  // namespace embstore::log
