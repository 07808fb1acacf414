/*
 * Compiled with -fno-exceptions and -fno-rtti, as storage engines are: the classes work, a failed
 * set-up call prints its text and aborts, and a handle from the C function can fail without that.
 */
#include <bellwire.hpp>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __cpp_exceptions
#error "compiled with exceptions"
#endif

#define EXPECT(what)                                                                              \
    do {                                                                                          \
        if (!(what)) {                                                                            \
            std::fprintf(stderr, "line %d: %s\n", __LINE__, #what);                               \
            std::exit(EXIT_FAILURE);                                                              \
        }                                                                                         \
    } while (0)

static const char NONE[] = "no such device";

/* What a child prints to stderr when it opens a device that is not there. */
static std::string last_words(int &status)
{
    int ends[2];
    EXPECT(pipe(ends) == 0);
    const pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        bellwire::device absent(NONE);
        _exit(EXIT_SUCCESS);
    }
    close(ends[1]);
    std::string words;
    char part[256];
    for (ssize_t got; (got = read(ends[0], part, sizeof part)) > 0;)
        words.append(part, static_cast<size_t>(got));
    close(ends[0]);
    EXPECT(waitpid(child, &status, 0) == child);
    return words;
}

int main()
{
    int status = 0;
    const std::string words = last_words(status);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    EXPECT(words.find("bw_device_open: ") != std::string::npos);
    EXPECT(words.find(NONE) != std::string::npos);

    bw_device *raw = nullptr;
    EXPECT(bw_device_open(NONE, &raw) < 0 && !raw);
    EXPECT(bw_device_open("soft", &raw) == BW_OK);
    bellwire::device device(raw);
    bellwire::pd pd(device);
    EXPECT(device && pd);
    return 0;
}
