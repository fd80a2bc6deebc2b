#include "names.h"

#include <utility>

namespace powercut {

void Names::add(NameCall call) {
  const size_t number = calls_.size();
  std::vector<size_t> needs;
  const auto stands_on_entry = [&](const Entry& entry) {
    if (const auto found = by_entry_.find(entry); found != by_entry_.end()) needs.push_back(found->second);
    by_entry_[entry] = number;
    by_folder_[entry.folder].push_back(number);
  };
  // All changes of one file or folder are recorded in its inode, in order: so a file that first gets a new
  // name and then loses its old one is never lost.
  const auto stands_on_file = [&](uint64_t id, bool goes) {
    if (const auto found = by_id_.find(id); found != by_id_.end()) needs.push_back(found->second);
    by_id_[id] = number;
    if (!goes) return;
    // A folder is removed only after its names.
    if (const auto found = by_folder_.find(id); found != by_folder_.end()) {
      needs.insert(needs.end(), found->second.begin(), found->second.end());
    }
  };
  stands_on_entry(call.entry);
  if (!call.to.name.empty()) stands_on_entry(call.to);
  stands_on_file(call.id, call.kind == NameCall::Kind::kRemove);
  if (call.other != 0) stands_on_file(call.other, call.kind == NameCall::Kind::kRename);
  calls_.push_back(std::move(call));
  needs_.push_back(std::move(needs));
}

void Names::make_durable(size_t call, bool& changed) {
  std::vector<size_t> waiting{call};
  while (!waiting.empty()) {
    const size_t at = waiting.back();
    waiting.pop_back();
    if (calls_[at].durable) continue;
    calls_[at].durable = changed = true;
    waiting.insert(waiting.end(), needs_[at].begin(), needs_[at].end());
  }
}

bool Names::sync_folder(uint64_t folder) {
  if (in_order_) return sync_all();
  bool changed = false;
  if (const auto found = by_folder_.find(folder); found != by_folder_.end()) {
    for (const size_t call : found->second) {
      NameCall& made = calls_[call];
      const bool has_two = !made.to.name.empty() && made.to.folder != made.entry.folder;
      if (has_two && made.synced == 0) {
        made.synced = folder;
        changed = true;
      } else {
        make_durable(call, changed);
      }
    }
    found->second.clear();
  }
  return changed;
}

bool Names::sync_all() {
  bool changed = false;
  for (; durable_until_ < calls_.size(); ++durable_until_) make_durable(durable_until_, changed);
  return changed;
}

std::vector<bool> Names::choose(Chance& chance, double probability) const {
  std::vector<bool> reached(calls_.size());
  bool stopped = false;
  for (size_t i = 0; i < calls_.size(); ++i) {
    bool stands = !(in_order_ && stopped);
    for (const size_t need : needs_[i]) stands = stands && reached[need];
    reached[i] = calls_[i].durable || (stands && chance.happens(probability));
    stopped = stopped || !reached[i];
  }
  return reached;
}

void Names::describe(Json& json, const std::vector<bool>& reached) const {
  json.key("names").open('[');
  for (size_t i = 0; i < calls_.size(); ++i) {
    const NameCall& call = calls_[i];
    json.open('[').value(static_cast<int>(reached[i])).value(static_cast<int>(call.kind));
    json.value(call.entry.folder).value(call.entry.name).value(call.to.folder).value(call.to.name);
    json.value(call.id).value(std::string_view(&call.type, 1)).value(call.target);
    json.value(call.told).close(']');
  }
  json.close(']');
}

}  // namespace powercut
