// The one place where native errors become Python's.
#pragma once

namespace embstore {

// Makes every Error that leaves a call of a Python module of the engine the class of embstore.errors that
// its kind says. To be called by each module, as it's imported.
void translate_errors();

}  // namespace embstore
