// A library that says that it was loaded: it creates the file that LAMBERT_TEST_LOADED names.
#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void loaded(void)
{
    FILE *file = fopen(getenv("LAMBERT_TEST_LOADED"), "w");
    if (file) fclose(file);
}
