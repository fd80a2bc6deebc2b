// Writes JSON, the format of all this library's output except pages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace powercut {

class Json {
 public:
  Json& open(char bracket);
  Json& close(char bracket);
  Json& key(std::string_view name);
  Json& value(std::string_view text);
  Json& value(const std::string& text) { return value(std::string_view(text)); }
  Json& value(const char* text) { return value(std::string_view(text)); }
  template <typename Number>
    requires std::is_integral_v<Number>
  Json& value(Number number) {
    return raw(std::to_string(number));
  }
  template <typename Value>
  Json& pair(std::string_view name, const Value& held) {
    return key(name).value(held);
  }

  template <typename Values>
  Json& list(std::string_view name, const Values& values) {
    key(name).open('[');
    for (const auto& held : values) value(held);
    return close(']');
  }

  bool write(const std::string& path) const;

 private:
  Json& raw(std::string_view text);
  void comma();

  std::string text_;
};

}  // namespace powercut
