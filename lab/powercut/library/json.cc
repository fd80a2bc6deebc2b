#include "json.h"

#include <array>
#include <cstdio>

#include "system_calls.h"

namespace powercut {

void Json::comma() {
  if (text_.empty()) return;
  const char last = text_.back();
  if (last != '{' && last != '[' && last != ':' && last != ',') text_ += ',';
}

Json& Json::raw(std::string_view text) {
  comma();
  text_ += text;
  return *this;
}

Json& Json::open(char bracket) { return raw(std::string_view(&bracket, 1)); }

Json& Json::close(char bracket) {
  text_ += bracket;
  return *this;
}

Json& Json::key(std::string_view name) {
  value(name);
  text_ += ':';
  return *this;
}

Json& Json::value(std::string_view text) {
  comma();
  text_ += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      text_ += '\\';
      text_ += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      std::array<char, 8> escaped{};
      snprintf(escaped.data(), escaped.size(), "\\u%04x", static_cast<unsigned>(c));
      text_ += escaped.data();
    } else {
      text_ += c;  // the reader must escape bytes that aren't UTF-8
    }
  }
  text_ += '"';
  return *this;
}

bool Json::write(const std::string& path) const { return system_calls::write_file(path, text_); }

}  // namespace powercut
