// Of what native tests include most: engine/CMakeLists.txt says what, and this file what it is compiled for.
