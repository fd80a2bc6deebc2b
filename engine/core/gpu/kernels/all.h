// Every kernel: NVRTC compiles them as one program.
#pragma once

#include "gpu/kernels/find.h"
#include "gpu/kernels/finite.h"
#include "gpu/kernels/gradient_sums.h"
#include "gpu/kernels/marks.h"
#include "gpu/kernels/moves.h"
#include "gpu/kernels/partitions.h"
#include "gpu/kernels/places.h"
#include "gpu/kernels/ranks.h"
#include "gpu/kernels/rows.h"
#include "gpu/kernels/scan.h"
#include "gpu/kernels/sort.h"
#include "gpu/kernels/unique.h"
#include "gpu/kernels/update_rows.h"
