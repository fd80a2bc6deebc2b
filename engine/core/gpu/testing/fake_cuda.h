// What fake_cuda.cc, a library of its own, noted of the calls that were made.
#pragma once

#include <cstdint>

struct FakeCuda {
  int calls;
  int retained;
  int pushed;
  bool loaded_ptx;  // the text that the fake NVRTC gives
  int compiled;
  char architecture[64];
  const char* launched;
  unsigned blocks;
  unsigned threads;
  void* stream;
  unsigned char argument[16];  // the first bytes of the struct
};

extern "C" FakeCuda* fake_cuda();
