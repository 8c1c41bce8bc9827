# Writes OUTPUT, a C file that defines `const unsigned char SYMBOL[]` with the bytes of IMAGE and
# `const size_t SYMBOL_bytes`. Run with: cmake -D IMAGE=... -D SYMBOL=... -D OUTPUT=... -P this
file(READ "${IMAGE}" digits HEX)
string(LENGTH "${digits}" length)
math(EXPR bytes "${length} / 2")
string(REGEX REPLACE "(..)" "0x\\1," body "${digits}")
string(REGEX REPLACE "((0x..,){20})" "\\1\n" body "${body}")
file(WRITE "${OUTPUT}.new"
    "/* Made from a compiled kernel image; see cmake/kernels.cmake. */\n"
    "#include <stddef.h>\n\n"
    "extern const unsigned char ${SYMBOL}[];\nextern const size_t ${SYMBOL}_bytes;\n\n"
    "const size_t ${SYMBOL}_bytes = ${bytes};\n"
    "_Alignas(64) const unsigned char ${SYMBOL}[] = {\n${body}\n};\n")
file(RENAME "${OUTPUT}.new" "${OUTPUT}")
