// When this library is loaded, it creates the file named by LAMBERT_TEST_LOADED.
#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void loaded(void)
{
    FILE *file = fopen(getenv("LAMBERT_TEST_LOADED"), "w");
    if (file) fclose(file);
}
