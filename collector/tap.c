/* tap: runs a training, hands its output on untouched, and keeps a copy that the collector reads.
 *
 * It stands where the training's command stood, often as PID 1, so the training must not notice it:
 * signals, exit code, streams and environment pass through, and neither a full disk nor a dead
 * collector ever stops or delays it. No threads; nothing is allocated once the training runs.
 *
 * The formats of the segments, of the mark for missing bytes and of PREFIX.end are in docs/tap.md.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	CHUNK = 65536,          /* read at once from the training; also the longest line held back */
	SAFE = PIPE_BUF,        /* what a pipe that polls writable takes without blocking */
	RETRY_MS = 1000,        /* between two tries to write a copy that failed */
	KILL_MS = 5000,         /* what descendants that do not die may delay the exit */
	OWN_FAILURE = 125,
	NOT_EXECUTABLE = 126,
	NOT_FOUND = 127,
};
#ifndef LOG_MS /* tests make these two shorter */
#define LOG_MS 5000 /* what a blocked container log may delay the exit */
#endif
#ifndef READY_MS
#define READY_MS 60000 /* the longest --wait-ready */
#endif
static const int64_t SEGMENT = 64 << 20, KEEP = 1 << 30, LEAST_KEEP = 1 << 20;

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* One line on stderr, in one write. */
static void vsay(const char *format, va_list arguments)
{
	char line[PATH_MAX + 256] = "tap: ";
	size_t room = sizeof line - 6;
	int n = vsnprintf(line + 5, room, format, arguments);
	size_t length = 5 + (n < 0 ? 0 : (size_t)n < room ? (size_t)n : room - 1);
	line[length++] = '\n';
	if (write(STDERR_FILENO, line, length) < 0)
		return; /* nobody to tell */
}

static void say(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	vsay(format, arguments);
	va_end(arguments);
}

static void fail(const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	vsay(format, arguments);
	va_end(arguments);
	exit(OWN_FAILURE);
}

static int64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- The copy: segments that the collector reads and unlinks ---- */

static struct {
	const char *prefix;
	int64_t keep, segment;    /* bytes, all segments and one */
	int fd, end;              /* the segment written to, and PREFIX.end.new; -1 when there is none */
	uint64_t number, oldest;  /* of the newest segment, and the lowest that may still be there */
	int64_t size;             /* of the newest segment */
	int64_t retry;            /* while a write has failed: when to try again; else 0 */
	uint64_t unmarked;        /* bytes missing here and not yet told by a mark */
	uint64_t written, missing, removed;
} copy = { .keep = KEEP, .fd = -1, .end = -1 };

static const char *segment_name(uint64_t number)
{
	static char name[PATH_MAX];
	snprintf(name, sizeof name, "%s.%06" PRIu64, copy.prefix, number);
	return name;
}

/* PREFIX.end, and PREFIX.end.new before its time. */
static char end_name[PATH_MAX], end_new_name[PATH_MAX];

/* Unlink the oldest segments until the others leave room for one whole new one within --keep. */
static void copy_sweep(void)
{
	int64_t total = copy.segment;
	uint64_t lowest = copy.number;
	for (uint64_t n = copy.number - 1; n >= copy.oldest && n > 0; n--) {
		struct stat st;
		const char *name = segment_name(n);
		if (stat(name, &st) < 0)
			continue;
		total += st.st_size;
		if (total > copy.keep && unlink(name) == 0)
			copy.removed += (uint64_t)st.st_size;
		else
			lowest = n;
	}
	copy.oldest = lowest;
}

/* Open the next segment, by its number; a number that is taken is passed over. */
static bool copy_open_next(void)
{
	uint64_t number = copy.number;
	int fd;
	do
		fd = open(segment_name(++number), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
	while (fd < 0 && errno == EEXIST);
	if (fd < 0)
		return false;
	fchmod(fd, 0644); /* whatever the umask: the collector is another user */
	if (copy.fd >= 0)
		close(copy.fd);
	copy.fd = fd;
	copy.number = number;
	copy.size = 0;
	copy_sweep();
	return true;
}

/* Hold a place for PREFIX.end while there is room: it must come out on a disk that is full by then. */
static void copy_reserve_end(void)
{
	char blank[512] = {0};
	copy.end = open(end_new_name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (copy.end >= 0 && (fchmod(copy.end, 0644) < 0 || write(copy.end, blank, sizeof blank) < 0)) {
		close(copy.end);
		copy.end = -1;
	}
}

/* Find where an earlier tap stopped, and open the segment after it. */
static void copy_start(void)
{
	char directory[PATH_MAX];
	const char *slash = strrchr(copy.prefix, '/');
	const char *base = slash ? slash + 1 : copy.prefix;
	snprintf(directory, sizeof directory, "%.*s", slash ? (int)(slash - copy.prefix) + 1 : 1, slash ? copy.prefix : ".");

	DIR *listing = opendir(directory);
	for (struct dirent *entry; listing && (entry = readdir(listing));) {
		size_t length = strlen(base);
		const char *digits = entry->d_name + length + 1;
		if (strncmp(entry->d_name, base, length) || entry->d_name[length] != '.')
			continue;
		if (strlen(digits) < 6 || strspn(digits, "0123456789") != strlen(digits))
			continue;
		uint64_t number = strtoull(digits, NULL, 10);
		if (number > copy.number)
			copy.number = number;
		if (!copy.oldest || number < copy.oldest)
			copy.oldest = number;
	}
	if (listing)
		closedir(listing);
	if (!copy.oldest)
		copy.oldest = 1;

	snprintf(end_name, sizeof end_name, "%s.end", copy.prefix);
	snprintf(end_new_name, sizeof end_new_name, "%s.end.new", copy.prefix);
	unlink(end_name); /* of an earlier run: this one has not ended */
	copy_reserve_end();
	if (!copy_open_next())
		say("%s: %s: the training goes on, its output is not copied until this works",
		    segment_name(copy.number + 1), strerror(errno));
}

/* Is there a segment with room for `length` bytes? */
static bool copy_ready(size_t length)
{
	struct stat st;
	if (copy.retry && now_ms() < copy.retry)
		return false;
	if (copy.fd >= 0 && (fstat(copy.fd, &st) < 0 || st.st_nlink == 0)) {
		close(copy.fd); /* its directory has gone: nobody will read this file */
		copy.fd = -1;
	}
	if (copy.fd >= 0 && copy.size + (int64_t)length <= copy.segment)
		return true;
	return copy_open_next();
}

/* Append `before` and `data` to the copy; what cannot be written is counted, and told by a mark later. */
static void copy_append(struct iovec before, struct iovec data)
{
	if (!copy.prefix)
		return;
	char mark[64];
	int marked = copy.unmarked ? snprintf(mark, sizeof mark, "\x1etrialtap missing %" PRIu64 "\n", copy.unmarked) : 0;
	struct iovec parts[] = { { mark, (size_t)marked }, before, data };
	uint64_t wanted = before.iov_len + data.iov_len, done = 0;

	if (copy_ready((size_t)marked + wanted)) {
		ssize_t n = writev(copy.fd, parts, 3);
		if (n > 0)
			copy.size += n;
		if (n >= marked) {
			copy.unmarked = 0;
			done = (uint64_t)(n - marked);
		}
	}
	copy.written += done;
	copy.unmarked += wanted - done;
	copy.missing += wanted - done;
	if (done == wanted && !copy.unmarked)
		copy.retry = 0;
	else if (now_ms() >= copy.retry)
		copy.retry = now_ms() + RETRY_MS;
}

/* Say how the training ended. */
static void copy_end(int status, struct timespec at, bool stopped)
{
	char text[512];
	if (!copy.prefix)
		return;
	copy.retry = 0;
	if (copy.unmarked)
		copy_append((struct iovec){0}, (struct iovec){0});
	int length = snprintf(text, sizeof text,
		"%s %d\ntime %lld.%09ld\nsegment %" PRIu64 "\nwritten %" PRIu64 "\nmissing %" PRIu64 "\nremoved %" PRIu64 "\nstopped %d\n",
		WIFSIGNALED(status) ? "signal" : "exit", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
		(long long)at.tv_sec, at.tv_nsec, copy.number, copy.written, copy.missing, copy.removed, stopped);
	struct stat st;
	if (copy.end < 0 || fstat(copy.end, &st) < 0 || st.st_nlink == 0)
		copy_reserve_end();
	if (copy.end < 0 || pwrite(copy.end, text, (size_t)length, 0) != length || ftruncate(copy.end, length) < 0)
		return;
	rename(end_new_name, end_name);
}

/* ---- The training's streams, on their way to the container's log ---- */

struct stream {
	int in, out;       /* our end of the training's pipe, and where its bytes go; in < 0: none, or at its end */
	size_t piece;      /* most bytes of one write to `out` */
	size_t left;       /* bytes still to be read */
	size_t got, sent;  /* bytes in `chunk`, and how many of them `out` has taken */
	size_t held;       /* bytes in `line`: the begin of a line whose end has not come yet */
	char chunk[CHUNK], line[CHUNK];
};
static struct stream streams[2] = { { .in = -1 }, { .in = -1 } };

static bool stream_pending(const struct stream *s)
{
	return s->sent < s->got;
}

/* How to write to an inherited descriptor without ever being held up in it.
 *
 * O_NONBLOCK belongs to the file description, which others share, so it is set on a description of
 * our own where the file can be opened again (pipes and terminals whose inode we may open). Else no
 * more is written than a descriptor that polls writable takes. Plain files and /dev/null do not block.
 */
static void stream_open(struct stream *s, int in, int out)
{
	char self[32];
	struct stat st;
	*s = (struct stream){ .in = in, .out = out, .piece = SAFE, .left = SIZE_MAX };
	if (fstat(out, &st) < 0)
		return;
	if (S_ISREG(st.st_mode) || (S_ISCHR(st.st_mode) && !isatty(out))) {
		s->piece = CHUNK;
	} else if (S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode)) {
		snprintf(self, sizeof self, "/proc/self/fd/%d", out);
		int own = open(self, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
		if (own >= 0) {
			s->out = own;
			s->piece = CHUNK;
		}
	}
}

/* Write what is pending for as long as `out` takes it. */
static void stream_write(struct stream *s)
{
	while (stream_pending(s)) {
		struct pollfd out = { .fd = s->out, .events = POLLOUT };
		if (s->piece == SAFE && poll(&out, 1, 0) <= 0)
			return;
		size_t length = s->got - s->sent;
		ssize_t n = write(s->out, s->chunk + s->sent, length < s->piece ? length : s->piece);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n < 0)
			s->sent = s->got; /* nobody reads it (EPIPE), or its disk is full: go on draining */
		else
			s->sent += (size_t)n;
	}
}

/* Copy the whole lines of what was read, and hold back the line that is not whole yet. */
static void stream_copy(struct stream *s)
{
	const char *lf = memrchr(s->chunk, '\n', s->got);
	size_t whole = lf ? (size_t)(lf - s->chunk) + 1 : 0;
	const char *cr = memrchr(s->chunk + whole, '\r', s->got - whole);
	whole = cr ? (size_t)(cr - s->chunk) + 1 : whole;

	if (!whole && s->held + s->got > sizeof s->line)
		whole = s->got; /* too long to hold */
	if (whole) {
		copy_append((struct iovec){ s->line, s->held }, (struct iovec){ s->chunk, whole });
		s->held = 0;
	}
	memcpy(s->line + s->held, s->chunk + whole, s->got - whole);
	s->held += s->got - whole;
}

static void stream_read(struct stream *s)
{
	ssize_t n = read(s->in, s->chunk, s->left < CHUNK ? s->left : CHUNK);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		close(s->in);
		s->in = -1;
		return;
	}
	s->got = (size_t)n;
	s->sent = 0;
	if (s->left != SIZE_MAX)
		s->left -= s->got;
	stream_copy(s);
	stream_write(s);
}

/* The training is dead, and what it wrote is in the pipe: read no more than that, since orphans may write for ever. */
static void stream_bound(struct stream *s)
{
	int waiting = 0;
	if (s->in >= 0 && ioctl(s->in, FIONREAD, &waiting) < 0)
		waiting = 0;
	s->left = (size_t)waiting;
}

static bool stream_done(const struct stream *s)
{
	return !stream_pending(s) && (s->in < 0 || s->left == 0);
}

/* ---- The training and its descendants ---- */

static struct {
	pid_t pid;                /* 0 once it was reaped: the number may be another process' by then */
	int status;
	struct timespec ended;
	bool stopped;             /* the early stop came before its own end */
	int64_t kill_at;          /* when TERM was not enough; 0: no stop under way */
} training;
static DIR *proc; /* /proc, opened at start: a stop must not fail for want of memory */

static void reap(void)
{
	int status;
	for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
		if (pid != training.pid)
			continue;
		clock_gettime(CLOCK_REALTIME, &training.ended);
		training.status = status;
		training.pid = 0;
	}
}

/* Send KILL to the processes whose parent we are; false when there are none.
 *
 * As child subreaper we become the parent of every orphan below us, so level by level this reaches
 * all descendants, in whatever session or process group they are.
 */
static bool kill_children(void)
{
	bool any = false;
	rewinddir(proc);
	for (struct dirent *entry; (entry = readdir(proc));) {
		char path[sizeof entry->d_name + 16], stat[512];
		pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10), parent;
		if (pid <= 0)
			continue;
		snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			continue;
		ssize_t n = read(fd, stat, sizeof stat - 1);
		close(fd);
		if (n <= 0)
			continue;
		stat[n] = 0;
		const char *after = strrchr(stat, ')'); /* the name before it may hold anything */
		if (!after || sscanf(after, ") %*c %d", &parent) != 1 || parent != getpid())
			continue;
		kill(pid, SIGKILL);
		any = true;
	}
	return any;
}

static void kill_all(void)
{
	if (training.pid)
		kill(training.pid, SIGKILL);
	if (getpid() == 1) {
		kill(-1, SIGKILL);
		return;
	}
	for (int64_t until = now_ms() + KILL_MS; proc && now_ms() < until && kill_children(); reap())
		poll(NULL, 0, 1); /* let them die, so that their children become ours */
}

/* ---- Signals: all blocked, read from a descriptor ---- */

/* The kernel's own calls: libraries leave out the signals that they keep for themselves (32, 33, 34). */
static uint64_t original_mask;
static struct sigaction original_chld;

static void set_mask(uint64_t mask, uint64_t *old)
{
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, old, sizeof mask);
}

static int take_signals(void)
{
	uint64_t all = UINT64_MAX;
	struct sigaction plain = { .sa_handler = SIG_DFL }; /* where it is ignored, exit codes are lost */
	set_mask(all, &original_mask);
	sigaction(SIGCHLD, &plain, &original_chld);
	return (int)syscall(SYS_signalfd4, -1, &all, sizeof all, SFD_CLOEXEC | SFD_NONBLOCK);
}

static void forward_signals(int fd)
{
	struct signalfd_siginfo got;
	while (read(fd, &got, sizeof got) == sizeof got) {
		bool from_kernel = got.ssi_code > 0;
		bool own = got.ssi_pid == (uint32_t)getpid(); /* PIPE and XFSZ of our own writes */
		if (own || (from_kernel && got.ssi_signo == SIGCHLD))
			continue;
		if (training.pid)
			kill(training.pid, (int)got.ssi_signo);
	}
}

/* ---- Early stop ---- */

static int open_control(const char *path)
{
	struct stat st;
	int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (fd >= 0 && fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode))
		return fd;
	say("%s: %s: the training runs, but cannot be stopped early", path, fd < 0 ? strerror(errno) : "not a FIFO");
	if (fd >= 0)
		close(fd);
	return -1;
}

static void read_control(int fd, int64_t grace_ms)
{
	char bytes[64];
	bool asked = false;
	while (read(fd, bytes, sizeof bytes) > 0)
		asked = true;
	reap(); /* its own end goes first */
	if (!asked || !training.pid || training.stopped)
		return;
	training.stopped = true;
	training.kill_at = now_ms() + grace_ms;
	kill(training.pid, SIGTERM);
}

/* ---- Start ---- */

/* In the new process: undo what is ours, and become the training. */
static _Noreturn void become(char **argv, int out, int err, int terminal)
{
	setpgid(0, 0); /* it was the leader of its process group without us */
	if (terminal >= 0)
		tcsetpgrp(terminal, getpid());
	if (out >= 0 && (dup2(out, STDOUT_FILENO) < 0 || dup2(err, STDERR_FILENO) < 0))
		_exit(OWN_FAILURE);
	sigaction(SIGCHLD, &original_chld, NULL);
	set_mask(original_mask, NULL);
	execvp(argv[0], argv);
	int error = errno;
	bool absent = error == ENOENT || error == ENOTDIR;
	say("%s: %s", argv[0], absent ? "not found, or the interpreter in its first line is not" : strerror(error));
	_exit(absent ? NOT_FOUND : NOT_EXECUTABLE);
}

/* Are both descriptors the same file, so that they are one stream with one order? */
static bool same_file(int a, int b)
{
	struct stat x, y;
	return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* A descriptor of the terminal whose foreground we are; -1: none. */
static int foreground_terminal(void)
{
	for (int fd = 0; fd <= 2; fd++)
		if (tcgetpgrp(fd) == getpgrp())
			return fd;
	return -1;
}

static void start(char **argv, bool copied)
{
	int out[2] = { -1, -1 }, err[2] = { -1, -1 }, terminal = foreground_terminal();
	bool one = same_file(STDOUT_FILENO, STDERR_FILENO);
	if (copied && (pipe2(out, O_CLOEXEC) < 0 || (!one && pipe2(err, O_CLOEXEC) < 0)))
		fail("pipe: %s", strerror(errno));
	training.pid = fork();
	if (training.pid < 0)
		fail("fork: %s", strerror(errno));
	if (training.pid == 0)
		become(argv, out[1], one ? out[1] : err[1], terminal);
	if (copied) {
		close(out[1]);
		stream_open(&streams[0], out[0], STDOUT_FILENO);
	}
	if (copied && !one) {
		close(err[1]);
		stream_open(&streams[1], err[0], STDERR_FILENO);
	}
	int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (nothing >= 0)
		dup2(nothing, STDIN_FILENO); /* stdin is the training's alone: its writer must see it closed */
}

/* ---- The loop ---- */

static int poll_timeout(int64_t until)
{
	int64_t rest = until - now_ms();
	return !until ? -1 : rest < 0 ? 0 : rest > INT_MAX ? INT_MAX : (int)rest;
}

/* Move bytes, signals and the stop until the training has ended and its output is passed on. */
static void run(int signals, int control, int64_t grace_ms)
{
	int64_t give_up_log = 0;
	for (;;) {
		reap();
		if (!training.pid && !give_up_log) {
			if (training.stopped)
				kill_all();
			for (int i = 0; i < 2; i++)
				stream_bound(&streams[i]);
			give_up_log = now_ms() + LOG_MS;
		}
		if (!training.pid && stream_done(&streams[0]) && stream_done(&streams[1]))
			return;
		if (training.kill_at && training.pid && now_ms() >= training.kill_at) {
			training.kill_at = 0;
			kill_all();
			continue;
		}

		struct pollfd fds[4] = { { .fd = signals, .events = POLLIN }, { .fd = training.pid ? control : -1, .events = POLLIN } };
		for (int i = 0; i < 2; i++) {
			struct stream *s = &streams[i];
			bool pending = stream_pending(s);
			fds[2 + i].fd = pending ? s->out : s->left ? s->in : -1;
			fds[2 + i].events = pending ? POLLOUT : POLLIN;
		}
		poll(fds, 4, poll_timeout(training.pid ? training.kill_at : give_up_log));

		if (fds[0].revents)
			forward_signals(signals);
		if (fds[1].revents)
			read_control(control, grace_ms);
		for (int i = 0; i < 2; i++) {
			struct stream *s = &streams[i];
			if (give_up_log && now_ms() >= give_up_log)
				s->sent = s->got; /* the log is lost, the copy goes on */
			if (fds[2 + i].revents && stream_pending(s))
				stream_write(s);
			else if (fds[2 + i].revents && s->in >= 0 && s->left)
				stream_read(s);
		}
	}
}

/* A last line without its end gets one, or the next stream's line would become part of it. */
static void copy_rest(void)
{
	for (int i = 0; i < 2; i++)
		if (streams[i].held)
			copy_append((struct iovec){ streams[i].line, streams[i].held }, (struct iovec){ "\n", 1 });
}

static int wait_ready(void)
{
	const char *directory = getenv("TRIALTAP_DIRECTORY");
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/tap", directory ? directory : "/var/run/trialtap");
	for (int64_t until = now_ms() + READY_MS; access(path, X_OK) < 0; poll(NULL, 0, 10))
		if (now_ms() >= until) {
			say("%s: not there after %d s: see the log of the collector", path, READY_MS / 1000);
			return 1;
		}
	return 0;
}

static double number(const char *option, const char *text, double least)
{
	char *end;
	double value = strtod(text, &end);
	if (end == text || *end || !(value >= least && value <= 1e15))
		fail("--%s %s: a number from %.0f on is needed", option, text, least);
	return value;
}

static const char USAGE[] =
	"tap [--to PREFIX] [--control FIFO] [--grace SECONDS] [--keep BYTES] -- PROGRAM [ARGUMENT...]\n"
	"tap --wait-ready\n"
	"\n"
	"Runs PROGRAM, hands its output on, and ends with its exit code.\n"
	"  --to PREFIX      also append the output to PREFIX.000001, ...\n"
	"  --control FIFO   stop PROGRAM early when a byte arrives here\n"
	"  --grace SECONDS  from TERM to KILL of an early stop (30)\n"
	"  --keep BYTES     the most that PREFIX.* may take, 1048576 or more (1073741824)\n"
	"  --wait-ready     wait until the collector has placed tap in its directory, at most 60 s\n";

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "to", required_argument, NULL, 't' },    { "control", required_argument, NULL, 'c' },
		{ "grace", required_argument, NULL, 'g' }, { "keep", required_argument, NULL, 'k' },
		{ "wait-ready", no_argument, NULL, 'w' },  { "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	const char *control_path = NULL;
	double grace = 30;

	for (int fd = 0; fd <= 2; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDWR) < 0) /* the lowest closed one is `fd` */
			return OWN_FAILURE;
	for (int option; (option = getopt_long(argc, argv, "+", options, NULL)) != -1;)
		switch (option) {
		case 't': copy.prefix = optarg; break;
		case 'c': control_path = optarg; break;
		case 'g': grace = number("grace", optarg, 0); break;
		case 'k': copy.keep = (int64_t)number("keep", optarg, (double)LEAST_KEEP); break;
		case 'w': return wait_ready();
		case 'h': return fputs(USAGE, stdout) < 0;
		default: return OWN_FAILURE;
		}
	if (optind == argc)
		fail("no program to run: tap [options] -- PROGRAM [ARGUMENT...]");
	if (copy.prefix && strlen(copy.prefix) > PATH_MAX - 32)
		fail("--to: longer than a path can be");

	int signals = take_signals();
	if (signals < 0)
		fail("signalfd: %s", strerror(errno));
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	proc = opendir("/proc");
	int control = control_path ? open_control(control_path) : -1;
	copy.segment = copy.keep / 4 < SEGMENT ? copy.keep / 4 : SEGMENT;
	if (copy.prefix)
		copy_start();

	start(argv + optind, copy.prefix);
	run(signals, control, (int64_t)(grace * 1000));
	copy_rest();
	copy_end(training.status, training.ended, training.stopped);
	if (training.stopped)
		return 0;
	return WIFSIGNALED(training.status) ? 128 + WTERMSIG(training.status) : WEXITSTATUS(training.status);
}
