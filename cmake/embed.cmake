# cmake -DINPUT=file -DOUTPUT=file.c -DNAME=SYMBOL -P embed.cmake: a file as a C array.
file(READ "${INPUT}" hex HEX)
string(LENGTH "${hex}" digits)
math(EXPR bytes "${digits} / 2")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "(char)0x\\1," body "${hex}")
string(REGEX REPLACE "((\\(char\\)0x..,){12})" "\\1\n" body "${body}")
file(WRITE "${OUTPUT}" "#include <stddef.h>
extern const char ${NAME}[];
extern const size_t ${NAME}_BYTES;
const char ${NAME}[] = {
${body}0};
const size_t ${NAME}_BYTES = ${bytes};
")
