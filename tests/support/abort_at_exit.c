/* Library for LD_PRELOAD: rank 1 of lambert-worker aborts after its main function has returned, as the destructor of a
   library can do. */

#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

__attribute__((destructor)) static void abort_rank_1(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (rank && !strcmp(rank, "1") && !strcmp(program_invocation_short_name, "lambert-worker"))
        abort();
}
