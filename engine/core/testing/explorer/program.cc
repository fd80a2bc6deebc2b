#include "testing/explorer/program.h"

#include <cxxabi.h>
#include <elf.h>
#include <link.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <vector>

namespace embstore::explorer {
namespace {

// Returns the program's load address: the first object that the dynamic linker lists.
uint64_t load_address() {
  static const uint64_t address = [] {
    uint64_t found = 0;
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* to) {
          *static_cast<uint64_t*>(to) = info->dlpi_addr;
          return 1;
        },
        &found);
    return found;
  }();
  return address;
}

struct Function {
  uint64_t end;
  std::string name;
};

template <class T>
std::vector<T> read_table(std::ifstream& file, const ElfW(Shdr) & section) {
  std::vector<T> table(section.sh_size / sizeof(T));
  file.seekg(static_cast<std::streamoff>(section.sh_offset));
  file.read(reinterpret_cast<char*>(table.data()), static_cast<std::streamsize>(table.size() * sizeof(T)));
  return table;
}

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status),
                                                    &std::free);
  return status == 0 ? text.get() : name;
}

// Returns a name without what is in brackets, which makes it long.
std::string shortened(const std::string& name) {
  std::string kept;
  int depth = 0;
  for (const char c : name) {
    const bool opens = c == '(' || c == '<';
    const bool closes = c == ')' || c == '>';
    depth += opens;
    if (depth == 0) kept += c;
    depth -= closes;
  }
  return kept;
}

// Returns the program's functions, by their begin.
std::map<uint64_t, Function> read_functions() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  ElfW(Ehdr) header{};
  file.read(reinterpret_cast<char*>(&header), sizeof(header));
  ElfW(Shdr) all{};
  all.sh_offset = header.e_shoff;
  all.sh_size = header.e_shnum * sizeof(ElfW(Shdr));
  std::map<uint64_t, Function> found;
  const std::vector<ElfW(Shdr)> sections = read_table<ElfW(Shdr)>(file, all);
  for (const ElfW(Shdr) & section : sections) {
    if (section.sh_type != SHT_SYMTAB || section.sh_link >= sections.size()) continue;
    const std::vector<char> names = read_table<char>(file, sections[section.sh_link]);
    for (const ElfW(Sym) & symbol : read_table<ElfW(Sym)>(file, section)) {
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_size == 0) continue;
      found.try_emplace(symbol.st_value,
                        Function{symbol.st_value + symbol.st_size, names.data() + symbol.st_name});
    }
  }
  return found;
}
const std::map<uint64_t, Function>& functions() {
  static const auto* const all = new std::map<uint64_t, Function>(read_functions());
  return *all;
}

// Returns the function at a place; functions().end() if there is none.
std::map<uint64_t, Function>::const_iterator at(uint64_t place) {
  const auto after = functions().upper_bound(place);
  if (after == functions().begin() || std::prev(after)->second.end < place) return functions().end();
  return std::prev(after);
}

}  // namespace

uint64_t place_of(const void* address) { return reinterpret_cast<uint64_t>(address) - load_address(); }

uint64_t begin_of_function_at(uint64_t place) {
  const auto function = at(place);
  return function == functions().end() ? place : function->first;
}

std::string function_at(uint64_t place) {
  const auto function = at(place);
  if (function == functions().end()) return "place " + std::to_string(place);
  return shortened(demangled(function->second.name.c_str()));
}

}  // namespace embstore::explorer
