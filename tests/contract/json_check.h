/* Whether a text is one whole JSON object: a strict reader of the grammar that keeps nothing. */
#ifndef CONTRACT_JSON_CHECK_H
#define CONTRACT_JSON_CHECK_H

#include <stdbool.h>

bool json_is_object(const char *text);

#endif
