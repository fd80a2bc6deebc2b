#include "admission/admission_filter.h"

#include "admission/counter_filter.h"
#include "admission/counting_bloom_filter.h"
#include "errors/error.h"

namespace embstore {
namespace {

struct Make {
  int shards;

  std::unique_ptr<AdmissionFilter> operator()(const NoFilter&) const { return nullptr; }
  std::unique_ptr<AdmissionFilter> operator()(const CounterFilterSpec& spec) const {
    if (spec.filter_freq == 0) return nullptr;
    return std::make_unique<CounterFilter>(spec.filter_freq);
  }
  std::unique_ptr<AdmissionFilter> operator()(const BloomFilterSpec& spec) const {
    if (spec.filter_freq == 0) return nullptr;
    return make_counting_bloom_filter(spec, shards);
  }
};

}  // namespace

void AdmissionFilter::merge_sketch(const SketchShape& shape, std::span<const std::byte>, uint64_t) {
  if (shape != SketchShape{}) {
    throw Error(ErrorKind::kInvalidArgument,
                "filter_option: the counts of waiting keys were kept in a sketch, which only a CBFFilter "
                "can go on with");
  }
}

std::unique_ptr<AdmissionFilter> make_filter(const FilterSpec& spec, int shards) {
  return std::visit(Make{shards}, spec);
}

}  // namespace embstore
