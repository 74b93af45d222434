#include "weir_tls.h"

#include <arpa/inet.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct weir_tls {
    SSL_CTX *context;
    SSL *session;
    char name[256];
    char why[256];
};

static const unsigned char ALPN[] = "\x04weir";

weir_tls *weir_tls_new(const char *ca, const char *name, const char *certificate, const char *key)
{
    weir_tls *tls = calloc(1, sizeof *tls);
    if (tls == NULL || strlen(name) >= sizeof tls->name) {
        free(tls);
        return NULL;
    }
    strcpy(tls->name, name);
    tls->context = SSL_CTX_new(TLS_client_method());
    SSL_CTX *context = tls->context;
    if (context == NULL || SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1
        || SSL_CTX_load_verify_locations(context, ca, NULL) != 1
        || SSL_CTX_set_alpn_protos(context, ALPN, sizeof ALPN - 1) != 0
        || (certificate != NULL
            && (SSL_CTX_use_certificate_chain_file(context, certificate) != 1
                || key == NULL || SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1
                || SSL_CTX_check_private_key(context) != 1))) {
        weir_tls_free(tls);
        return NULL;
    }
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    return tls;
}

void weir_tls_free(weir_tls *tls)
{
    if (tls != NULL) {
        weir_tls_close(tls);
        SSL_CTX_free(tls->context);
        free(tls);
    }
}

/* Whether a certificate is of a node, as its URI says: weir://SYSTEM/SET/node/N. All others that a
 * CA of a set issues are of users and of devices, which must not pose as brokers. */
static int is_of_node(X509 *certificate)
{
    int found = 0;
    GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    for (int n = 0; n < sk_GENERAL_NAME_num(names); n++) {
        const GENERAL_NAME *one = sk_GENERAL_NAME_value(names, n);
        if (one->type != GEN_URI)
            continue;
        const char *uri = (const char *)ASN1_STRING_get0_data(one->d.uniformResourceIdentifier);
        size_t size = (size_t)ASN1_STRING_length(one->d.uniformResourceIdentifier);
        char text[256];
        if (size >= sizeof text || memchr(uri, 0, size) != NULL)
            continue;
        memcpy(text, uri, size);
        text[size] = 0;
        const char *path = strncmp(text, "weir://", 7) == 0 ? strchr(text + 7, '/') : NULL;
        path = path == NULL ? NULL : strchr(path + 1, '/'); /* behind the system and the set */
        found |= path != NULL && strncmp(path, "/node/", 6) == 0;
    }
    GENERAL_NAMES_free(names);
    return found;
}

static int failed(weir_tls *tls, const char *what)
{
    long verdict = SSL_get_verify_result(tls->session);
    unsigned long error = ERR_get_error();
    const char *reason = verdict != X509_V_OK ? X509_verify_cert_error_string(verdict)
                         : error != 0         ? ERR_reason_error_string(error)
                                              : "the connection broke";
    snprintf(tls->why, sizeof tls->why, "%s: %s", what, reason == NULL ? "unknown" : reason);
    ERR_clear_error();
    SSL_free(tls->session);
    tls->session = NULL;
    return verdict != X509_V_OK ? -2 : -1;
}

int weir_tls_open(weir_tls *tls, int line)
{
    unsigned char address[sizeof(struct in6_addr)];
    ERR_clear_error();
    tls->session = SSL_new(tls->context);
    if (tls->session == NULL || SSL_set_fd(tls->session, line) != 1)
        return failed(tls, "no memory");
    int is_address = inet_pton(AF_INET, tls->name, address) == 1
                     || inet_pton(AF_INET6, tls->name, address) == 1;
    if (is_address) {
        X509_VERIFY_PARAM *wanted = SSL_get0_param(tls->session);
        if (X509_VERIFY_PARAM_set1_ip_asc(wanted, tls->name) != 1)
            return failed(tls, "no memory");
    } else if (SSL_set1_host(tls->session, tls->name) != 1
               || SSL_set_tlsext_host_name(tls->session, tls->name) != 1) {
        return failed(tls, "no memory");
    }
    if (SSL_connect(tls->session) != 1)
        return failed(tls, "no TLS with the broker");
    X509 *peer = SSL_get1_peer_certificate(tls->session);
    int trusted = peer != NULL && is_of_node(peer);
    X509_free(peer);
    if (!trusted) {
        failed(tls, "no TLS with the broker");
        snprintf(tls->why, sizeof tls->why, "the broker's certificate is of no node of a system");
        return -2;
    }
    return 0;
}

const char *weir_tls_why(const weir_tls *tls)
{
    return tls->why;
}

long weir_tls_send(weir_tls *tls, const void *bytes, size_t size)
{
    int most = size > INT_MAX ? INT_MAX : (int)size;
    int sent = tls->session == NULL ? -1 : SSL_write(tls->session, bytes, most);
    return sent > 0 ? sent : -1;
}

long weir_tls_receive(weir_tls *tls, void *bytes, size_t room)
{
    int most = room > INT_MAX ? INT_MAX : (int)room;
    if (tls->session == NULL)
        return -1;
    int got = SSL_read(tls->session, bytes, most);
    if (got > 0)
        return got;
    return SSL_get_error(tls->session, got) == SSL_ERROR_ZERO_RETURN ? 0 : -1;
}

int weir_tls_has_more(const weir_tls *tls)
{
    return tls->session != NULL && SSL_pending(tls->session) > 0;
}

void weir_tls_close(weir_tls *tls)
{
    if (tls->session != NULL)
        SSL_shutdown(tls->session);
    SSL_free(tls->session);
    tls->session = NULL;
    ERR_clear_error();
}
