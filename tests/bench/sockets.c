/*
 * Opens, uses and closes sockets as fast as it can: what measurements of the connect balancer run.
 *
 *   sockets CGROUP MODE COUNT ADDRESSES [SERVER]
 *
 * CGROUP is joined before clients' sockets are made ("-": none). ADDRESSES is a file of struct sockaddr_in, taken in
 * turn; SERVER the address:port of the one that answers, whose socket does not belong to the cgroup. Prints
 * nanoseconds an operation, the least of ten parts of COUNT.
 *
 *   tcp      socket, connect without waiting for it, close
 *   udp      socket, connect, close
 *   accept   socket, connect, accept by SERVER, getpeername, close both
 *   peer     as udp, with getpeername
 *   dgram    on one socket: sendto, SERVER answers, recvfrom with the name of the sender
 *   fresh    as dgram, on a socket of its own each time
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PARTS 10

static struct sockaddr_in *addresses;
static long count, known;
static int server = -1;

static void need(int fine, const char *what)
{
	if (fine)
		return;
	perror(what);
	exit(1);
}

static long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000L + time.tv_nsec;
}

static void join(const char *cgroup)
{
	char path[512];
	int fd;

	if (!strcmp(cgroup, "-"))
		return;
	snprintf(path, sizeof(path), "%s/cgroup.procs", cgroup);
	fd = open(path, O_WRONLY);
	need(fd >= 0 && write(fd, "0", 1) == 1, path);
	close(fd);
}

static void read_addresses(const char *path)
{
	FILE *file = fopen(path, "r");

	need(file != 0, path);
	fseek(file, 0, SEEK_END);
	known = ftell(file) / sizeof(*addresses);
	rewind(file);
	addresses = malloc(known * sizeof(*addresses));
	need(known && (long)fread(addresses, sizeof(*addresses), known, file) == known, path);
	fclose(file);
}

static void serve(char *place, int type)
{
	struct sockaddr_in own = { .sin_family = AF_INET };
	char *colon = strchr(place, ':');
	int one = 1;

	*colon = 0;
	own.sin_port = htons(atoi(colon + 1));
	need(inet_pton(AF_INET, place, &own.sin_addr) == 1, place);
	server = socket(AF_INET, type, 0);
	setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	need(!bind(server, (struct sockaddr *)&own, sizeof(own)), "bind");
	need(type == SOCK_DGRAM || !listen(server, 16), "listen");
}

/* A close that leaves nothing in TIME_WAIT. */
static void reset(int fd)
{
	struct linger linger = { 1, 0 };

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	close(fd);
}

static void same(const struct sockaddr_in *one, const struct sockaddr_in *other)
{
	errno = EPROTO;
	need(one->sin_port == other->sin_port && one->sin_addr.s_addr == other->sin_addr.s_addr, "another name");
}

static void connect_close(const struct sockaddr_in *to, int type, int ask)
{
	struct sockaddr_in peer;
	socklen_t length = sizeof(peer);
	int fd = socket(AF_INET, type, 0);

	need(!connect(fd, (struct sockaddr *)to, sizeof(*to)) || errno == EINPROGRESS, "connect");
	if (ask) {
		need(!getpeername(fd, (struct sockaddr *)&peer, &length), "getpeername");
		same(&peer, to);
	}
	close(fd);
}

static void connect_accept(const struct sockaddr_in *to)
{
	struct sockaddr_in peer;
	socklen_t length = sizeof(peer);
	int fd = socket(AF_INET, SOCK_STREAM, 0), accepted;

	need(!connect(fd, (struct sockaddr *)to, sizeof(*to)), "connect");
	accepted = accept(server, 0, 0);
	need(accepted >= 0, "accept");
	need(!getpeername(fd, (struct sockaddr *)&peer, &length), "getpeername");
	same(&peer, to);
	reset(fd);
	close(accepted);
}

static void ask(int fd, const struct sockaddr_in *to)
{
	struct sockaddr_in from;
	socklen_t length = sizeof(from);
	char byte = 'x';

	need(sendto(fd, &byte, 1, 0, (struct sockaddr *)to, sizeof(*to)) == 1, "sendto");
	need(recvfrom(server, &byte, 1, 0, (struct sockaddr *)&from, &length) == 1, "recvfrom");
	need(sendto(server, &byte, 1, 0, (struct sockaddr *)&from, length) == 1, "answer");
	length = sizeof(from);
	need(recvfrom(fd, &byte, 1, 0, (struct sockaddr *)&from, &length) == 1, "recvfrom");
	same(&from, to);
}

int main(int argc, char **argv)
{
	long least = 0, next = 0;
	const char *mode;
	int fd = -1;

	if (argc < 5)
		return 2;
	mode = argv[2];
	count = atol(argv[3]);
	read_addresses(argv[4]);
	if (argc > 5)
		serve(argv[5], !strcmp(mode, "accept") ? SOCK_STREAM : SOCK_DGRAM);
	join(argv[1]);
	if (!strcmp(mode, "dgram"))
		fd = socket(AF_INET, SOCK_DGRAM, 0);
	for (int part = 0; part < PARTS; part++) {
		long began = now(), took;

		for (long i = 0; i < count / PARTS; i++, next++) {
			const struct sockaddr_in *to = &addresses[next % known];

			if (!strcmp(mode, "tcp"))
				connect_close(to, SOCK_STREAM | SOCK_NONBLOCK, 0);
			else if (!strcmp(mode, "udp"))
				connect_close(to, SOCK_DGRAM, 0);
			else if (!strcmp(mode, "peer"))
				connect_close(to, SOCK_DGRAM, 1);
			else if (!strcmp(mode, "accept"))
				connect_accept(to);
			else if (!strcmp(mode, "dgram"))
				ask(fd, to);
			else {
				fd = socket(AF_INET, SOCK_DGRAM, 0);
				ask(fd, to);
				close(fd);
			}
		}
		took = now() - began;
		if (!part || took < least)
			least = took;
	}
	printf("%.1f\n", (double)least / (count / PARTS));
	return 0;
}
