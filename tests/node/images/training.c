/* A training without libraries or shell: `training ROWS MILLISECONDS [END]` prints ROWS lines `loss=N`, N from 1,
 * that many milliseconds apart, then ends as END says: a number is its exit status, `eat` takes memory until it is
 * killed for it, `hang` waits. SIGTERM ends it at once with 143. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void end(int number) { _exit(128 + number); }

int main(int argc, char **argv) {
  if (argc < 3) { fputs("usage: training ROWS MILLISECONDS [END]\n", stderr); return 2; }
  int rows = atoi(argv[1]), apart = atoi(argv[2]);
  const char *how = argc > 3 ? argv[3] : "0";
  signal(SIGTERM, end);
  setvbuf(stdout, NULL, _IOLBF, 0);
  for (int row = 1; row <= rows; row++) {
    printf("loss=%d\n", row);
    nanosleep(&(struct timespec){apart / 1000, apart % 1000 * 1000000L}, NULL);
  }
  if (!strcmp(how, "hang")) for (;;) pause();
  if (!strcmp(how, "eat")) for (;;) { char *more = malloc(1 << 20); if (more) memset(more, 1, 1 << 20); }
  return atoi(how);
}
