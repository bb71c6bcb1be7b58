/* Library for LD_PRELOAD: emulates flock of other file systems. With ODD_LOCKS=nfs, the file must be open in the access
   mode of the lock, as for fcntl. With ODD_LOCKS=none, there is no lock manager. */

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

int flock(int file, int operation)
{
    const char *kind = getenv("ODD_LOCKS");
    int access = fcntl(file, F_GETFL) & O_ACCMODE;
    if (kind && !strcmp(kind, "none")) {
        errno = ENOLCK;
        return -1;
    }
    if (kind && !strcmp(kind, "nfs")
        && ((operation & LOCK_SH && access == O_WRONLY) || (operation & LOCK_EX && access == O_RDONLY))) {
        errno = EBADF;
        return -1;
    }
    return syscall(SYS_flock, file, operation);
}
