/* The floor under every fan-out: accept N connections, then write one frame to each of them, at a given pace.
 *
 *     floor PORT CONNECTIONS ROUNDS BURST PAUSE_MICROSECONDS FRAME_BYTES
 *
 * Each round writes BURST frames to every connection, one write each, and sleeps until the next round is due. Prints
 * "ready" when all connections have sent their request, and at the end the CPU in nanoseconds that the rounds took:
 * what the kernel alone charges for delivering the frames.
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static long long nanoseconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static int listen_on(int port) {
    int on = 1, sock = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {0};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(sock, (struct sockaddr *)&address, sizeof address) || listen(sock, 4096)) {
        perror("floor");
        exit(1);
    }
    return sock;
}

int main(int argc, char **argv) {
    if (argc != 7) {
        fprintf(stderr, "floor PORT CONNECTIONS ROUNDS BURST PAUSE_MICROSECONDS FRAME_BYTES\n");
        return 2;
    }
    int port = atoi(argv[1]), count = atoi(argv[2]), rounds = atoi(argv[3]), burst = atoi(argv[4]);
    long long pause = atoll(argv[5]) * 1000;
    size_t size = atoi(argv[6]);
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";
    int on = 1, listener = listen_on(port), *peers = calloc(count, sizeof *peers);
    char request[4096], *frame = malloc(size);

    memset(frame, 'x', size);
    memcpy(frame, "id: 1\ndata: ", 12);
    memcpy(frame + size - 2, "\n\n", 2);
    for (int i = 0; i < count; i++) {
        peers[i] = accept(listener, NULL, NULL);
        setsockopt(peers[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (read(peers[i], request, sizeof request) <= 0 || write(peers[i], head, sizeof head - 1) < 0)
            return 1;
    }
    puts("ready");
    fflush(stdout);
    getchar(); /* the bench says when to begin */
    long long cpu = nanoseconds(CLOCK_PROCESS_CPUTIME_ID), due = nanoseconds(CLOCK_MONOTONIC);
    for (int round = 0; round < rounds; round++) {
        for (int frames = 0; frames < burst; frames++)
            for (int i = 0; i < count; i++)
                if (write(peers[i], frame, size) < 0)
                    return 1;
        due += pause;
        struct timespec until = {due / 1000000000LL, due % 1000000000LL};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    }
    printf("%lld\n", nanoseconds(CLOCK_PROCESS_CPUTIME_ID) - cpu);
    fflush(stdout);
    getchar(); /* keep the connections open until everything was read */
    return 0;
}
