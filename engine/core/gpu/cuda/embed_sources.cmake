# Writes OUTPUT, a source with the texts of FILES in FOLDER, as kernel_sources.h declares them.
set(text "#include \"gpu/cuda/kernel_sources.h\"\n\nnamespace embstore::gpu {\n\nstd::span<const KernelSource> kernel_sources() {\n  static constexpr KernelSource kSources[] = {\n")
foreach(name IN LISTS FILES)
  file(READ "${FOLDER}/${name}" source)
  string(APPEND text "      {\"${name}\", R\"embstore(${source})embstore\"},\n")
endforeach()
string(APPEND text "  };\n  return kSources;\n}\n\n}  // namespace embstore::gpu\n")
file(WRITE "${OUTPUT}" "${text}")
