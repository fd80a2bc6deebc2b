// The names of a table's files, and errors that name one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace embstore::log {

// The ending of a file that is being written and doesn't have its final name yet.
inline constexpr std::string_view kUnfinished = ".new";

// Returns `stem`, the number with ten digits or more, so that names sort as the numbers do, and `ending`.
std::string numbered_name(std::string_view stem, uint64_t number, std::string_view ending);
// Returns the number in such a name, nullopt if `name` isn't one.
std::optional<uint64_t> number_in(std::string_view name, std::string_view stem, std::string_view ending);

// Returns the directory of the file `path`.
std::string directory_of(const std::string& path);
// Throws Error(kStorage) if the system can't say whether the file exists.
bool exists(const std::string& path);

// Throw Error(kStorage) with "PATH: WHY"; refuse_needed(), for a file that a checkpoint needs, adds what to
// do.
[[noreturn]] void refuse(const std::string& path, const std::string& why);
[[noreturn]] void refuse_needed(const std::string& path, const std::string& why);

}  // namespace embstore::log
