# The one list of compiler flags.  Every target links kvgraft_flags privately.
add_library(kvgraft_flags INTERFACE)
target_compile_options(kvgraft_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes
  -Wcast-qual -Wundef -Wvla -Wformat=2 -fno-common -fstack-protector-strong
  -ffile-prefix-map=${PROJECT_SOURCE_DIR}=.
  $<$<BOOL:${KVGRAFT_WERROR}>:-Werror>)
target_link_options(kvgraft_flags INTERFACE -Wl,-z,relro -Wl,-z,now)
target_include_directories(kvgraft_flags INTERFACE
  ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)

# GCC blanks a structure of a few cache lines by a string instruction, whose start alone takes longer
# than most of the calls that blank one.  Plain stores do it at once.
include(CheckCCompilerFlag)
set(KVGRAFT_BLANK -mmemset-strategy=unrolled_loop:512:noalign,libcall:-1:noalign
  -mmemcpy-strategy=unrolled_loop:512:noalign,libcall:-1:noalign)
check_c_compiler_flag("${KVGRAFT_BLANK}" KVGRAFT_HAS_BLANK)
if(KVGRAFT_HAS_BLANK)
  target_compile_options(kvgraft_flags INTERFACE ${KVGRAFT_BLANK})
endif()
