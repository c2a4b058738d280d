/* A client and a server on one processor, each in a network namespace: the whole cost of a way between the two.
 *
 * pair MODE CLIENT-NAMESPACE SERVER-NAMESPACE LISTEN-PORT ADDRESS PORT MILLISECONDS PROCESSOR
 *
 * connect  one new connection after the other: a byte each way, reset by the client, so that no port waits
 * request  a byte each way, again and again, on one connection
 * bulk     as much as there is room for, from client to server, on one connection
 * fetch    the same from server to client
 *
 * Prints how many (bulk, fetch: bytes that arrived), nanoseconds it took, and for the first two the median and the 99th
 * percentile in nanoseconds. Ends with 1 when anything fails.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 1 << 20, PIECE = 1 << 18 };
static unsigned took[MOST];
static char piece[PIECE];

/* An address of either family, as the system calls take it. */
struct place {
	int family;
	socklen_t length;
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	} at;
};

static long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int check(int result, const char *what)
{
	if (result < 0)
		err(1, "%s", what);
	return result;
}

/* NULL: any of that family. */
static struct place place(int family, const char *address, const char *port)
{
	struct place made = { family, sizeof(made.at.v4), { { 0 } } };
	void *bytes = &made.at.v4.sin_addr;

	if (family == AF_INET6) {
		made.length = sizeof(made.at.v6);
		bytes = &made.at.v6.sin6_addr;
	}
	made.at.any.sa_family = family;
	made.at.v4.sin_port = htons(atoi(port)); /* where IPv6 has it, too */
	if (address && inet_pton(family, address, bytes) != 1)
		errx(2, "%s", address);
	return made;
}

static int tcp_in(const char *namespace, int family)
{
	int fd = check(open(namespace, O_RDONLY | O_CLOEXEC), namespace), one = 1;

	check(setns(fd, CLONE_NEWNET), "setns");
	close(fd);
	fd = check(socket(family, SOCK_STREAM, 0), "socket");
	check(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)), "TCP_NODELAY");
	return fd;
}

static int connected(const struct place *to)
{
	struct linger reset = { 1, 0 };
	int one = 1, fd = check(socket(to->family, SOCK_STREAM, 0), "socket");

	check(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), "SO_LINGER");
	check(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)), "TCP_NODELAY");
	check(connect(fd, &to->at.any, to->length), "connect");
	return fd;
}

/* Echoes a byte at a time, or swallows and says in the end how much it was, or sends until nobody listens. */
static void serve(int listener, int bulk, int fetch)
{
	for (;;) {
		int fd = check(accept(listener, NULL, NULL), "accept");
		unsigned long long all = 0;
		ssize_t size;

		while (fetch && write(fd, piece, PIECE) > 0)
			;
		while (!fetch && (size = read(fd, piece, bulk ? PIECE : 1)) > 0) {
			all += size;
			if (!bulk && write(fd, piece, 1) != 1)
				break;
		}
		if (bulk && write(fd, &all, sizeof(all)) != sizeof(all))
			err(1, "the sum");
		close(fd);
	}
}

static void ask(int fd)
{
	if (write(fd, piece, 1) != 1 || read(fd, piece, 1) != 1)
		err(1, "no answer");
}

static int rising(const void *a, const void *b)
{
	unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	struct place here, to;
	int bulk, fetch, anew, listener, fd = -1, one = 1, count = 0;
	unsigned long long all = 0;
	long long began, end, last;
	cpu_set_t cpus;
	pid_t server;

	if (argc != 9)
		errx(2, "pair MODE CLIENT SERVER LISTEN-PORT ADDRESS PORT MILLISECONDS PROCESSOR");
	bulk = !strcmp(argv[1], "bulk");
	fetch = !strcmp(argv[1], "fetch");
	anew = !strcmp(argv[1], "connect");
	CPU_ZERO(&cpus);
	CPU_SET(atoi(argv[8]), &cpus);
	check(sched_setaffinity(0, sizeof(cpus), &cpus), "sched_setaffinity");
	to = place(strchr(argv[5], ':') ? AF_INET6 : AF_INET, argv[5], argv[6]);
	here = place(to.family, NULL, argv[4]);
	listener = tcp_in(argv[3], here.family);
	check(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)), "SO_REUSEADDR");
	check(bind(listener, &here.at.any, here.length), "bind");
	check(listen(listener, 128), "listen");
	server = check(fork(), "fork");
	if (!server) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		signal(SIGPIPE, SIG_IGN);
		serve(listener, bulk, fetch);
	}
	close(tcp_in(argv[2], to.family));
	if (!anew) {
		fd = connected(&to);
		if (!bulk && !fetch)
			ask(fd);
	}
	began = last = now();
	end = began + atoll(argv[7]) * 1000000;
	while (last < end) {
		long long before = last;

		if (bulk) {
			check(write(fd, piece, PIECE), "write");
		} else if (fetch) {
			ssize_t size = read(fd, piece, PIECE);

			if (size <= 0)
				err(1, "read");
			all += size;
		} else {
			if (anew)
				fd = connected(&to);
			ask(fd);
			if (anew)
				close(fd);
		}
		last = now();
		if (count < MOST)
			took[count++] = last - before;
	}
	if (bulk) {
		check(shutdown(fd, SHUT_WR), "shutdown");
		if (read(fd, &all, sizeof(all)) != sizeof(all))
			err(1, "the sum");
		last = now();
	}
	kill(server, SIGKILL);
	waitpid(server, NULL, 0);
	qsort(took, count, sizeof(*took), rising);
	printf("%llu %lld %u %u\n", bulk || fetch ? all : (unsigned long long)count, last - began, took[count / 2],
	       took[count * 99LL / 100]);
	return 0;
}
