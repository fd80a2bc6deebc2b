// The precompiled headers that most native tests include: engine/CMakeLists.txt lists them, and this file is
// compiled to make them.
