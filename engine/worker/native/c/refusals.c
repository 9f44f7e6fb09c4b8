/* The functions that are refused, by the table; and a check that all others are there. */
#include "interface.h"

TRITONSERVER_Error *refuse(const char *name);

/* A caller removes its arguments from the stack, however many there are. */
#define PROVIDED(name)
#define ACCEPTED(name)
#define REFUSED(name)                                                                                        \
    EXPORTED TRITONSERVER_Error *name(void) { return refuse(#name); }
#include "functions.def"
#undef PROVIDED
#undef ACCEPTED
#undef REFUSED

/* A name of the table without a definition fails the link. */
#define PROVIDED(name) extern const char name[];
#define ACCEPTED(name) extern const char name[];
#define REFUSED(name)
#include "functions.def"
#undef PROVIDED
#undef ACCEPTED

#define PROVIDED(name) name,
#define ACCEPTED(name) name,
__attribute__((used)) static const char *const defined[] = {
#include "functions.def"
};
