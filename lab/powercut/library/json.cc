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

bool Json::write(const std::string& path) const {
  const int file = system_calls::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const bool done = file >= 0 && system_calls::write_all(file, text_.data(), text_.size());
  if (file >= 0) system_calls::close(file);
  return done;
}

}  // namespace powercut
