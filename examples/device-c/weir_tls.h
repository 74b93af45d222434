/* TLS 1.3 over a connected socket, by OpenSSL: the broker shows that it is a node of the system, and
 * a device may show a certificate of its own. Only what is built with WEIR_TLS has it. */
#ifndef WEIR_TLS_H
#define WEIR_TLS_H

#include <stddef.h>

typedef struct weir_tls weir_tls;

/* Files in PEM: the CA of the set, and the device's certificate and key, or NULL for both. `name` is
 * the host or the IP address that the broker's certificate must have. NULL if a file cannot be read. */
weir_tls *weir_tls_new(const char *ca, const char *name, const char *certificate, const char *key);
void weir_tls_free(weir_tls *tls);

/* Shake hands over a socket. 0; -1: the connection broke; -2: the broker is not to be trusted.
 * `weir_tls_why` has the reason. The socket stays the caller's. */
int weir_tls_open(weir_tls *tls, int line);
const char *weir_tls_why(const weir_tls *tls);

/* As send and recv do: how many bytes, 0 at the end, -1 if the connection is of no use any more. */
long weir_tls_send(weir_tls *tls, const void *bytes, size_t size);
long weir_tls_receive(weir_tls *tls, void *bytes, size_t room);

/* Whether there are bytes that `poll` does not know of. */
int weir_tls_has_more(const weir_tls *tls);

/* Say goodbye, before the socket is closed. */
void weir_tls_close(weir_tls *tls);

#endif
