// What this crate needs of libibverbs, in functions without inline code and structures. Every
// function returns 0 or a negative errno.

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    PORT = 1,
    // At most so many reads are on their way: what soft-RoCE and most devices allow.
    READS_MAX = 16,
    HOPS_MAX = 64,
    // 4.096 us * 2^14 is 67 ms, tried again seven times.
    TIMEOUT = 14,
    RETRIES = 7,
    // 0.64 ms until a peer that is not ready is asked again.
    NOT_READY_TIMER = 12,
};

struct farrow_rdma {
    struct ibv_context *context;
    struct ibv_pd *domain;
    struct ibv_comp_channel *channel;
    struct ibv_cq *completions;
    struct ibv_qp *pair;
    struct ibv_port_attr port;
    union ibv_gid gid;
    int gid_index;
    uint32_t first_packet;
    int reads_max;
};

// Where a peer's queue pair is.
struct farrow_rdma_address {
    uint8_t gid[16];
    uint32_t pair;
    uint32_t first_packet;
    uint32_t lid;
    uint32_t mtu;
    uint32_t reads_max;
};

static int negative(int error) { return error > 0 ? -error : -EIO; }

static int last_error(void) { return negative(errno); }

static struct ibv_context *open_device(const char *name) {
    int count = 0;
    struct ibv_device **devices = ibv_get_device_list(&count);
    struct ibv_context *context = NULL;
    errno = ENODEV;
    for (int at = 0; devices && at < count; at++) {
        if (strcmp(ibv_get_device_name(devices[at]), name) == 0) {
            context = ibv_open_device(devices[at]);
            break;
        }
    }
    int error = errno;
    if (devices) ibv_free_device_list(devices);
    errno = error;
    return context;
}

// The address of RoCE v2 that routers know best: an IPv4 one, else any; of InfiniBand the first.
static int find_gid(struct farrow_rdma *own) {
    static const uint8_t ipv4[12] = {[10] = 0xff, [11] = 0xff};
    int found = -1;
    for (int at = 0; at < own->port.gid_tbl_len; at++) {
        struct ibv_gid_entry entry;
        if (ibv_query_gid_ex(own->context, PORT, at, &entry, 0) != 0) continue;
        int is_ethernet = own->port.link_layer == IBV_LINK_LAYER_ETHERNET;
        if (is_ethernet && entry.gid_type != IBV_GID_TYPE_ROCE_V2) continue;
        int is_ipv4 = memcmp(entry.gid.raw, ipv4, sizeof ipv4) == 0;
        if (found >= 0 && !is_ipv4) continue;
        found = at;
        own->gid = entry.gid;
        if (is_ipv4 || !is_ethernet) break;
    }
    own->gid_index = found;
    return found < 0 ? -EADDRNOTAVAIL : 0;
}

static int make_pair(struct farrow_rdma *own) {
    struct ibv_qp_init_attr wanted = {
        .send_cq = own->completions,
        .recv_cq = own->completions,
        .cap = {.max_send_wr = READS_MAX, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
    };
    own->pair = ibv_create_qp(own->domain, &wanted);
    if (!own->pair) return last_error();
    struct ibv_qp_attr attributes = {
        .qp_state = IBV_QPS_INIT,
        .port_num = PORT,
        .qp_access_flags = IBV_ACCESS_REMOTE_READ,
    };
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    int error = ibv_modify_qp(own->pair, &attributes, mask);
    return error ? negative(error) : 0;
}

static int prepare(struct farrow_rdma *own, const char *name) {
    own->context = open_device(name);
    if (!own->context) return last_error();
    int error = ibv_query_port(own->context, PORT, &own->port);
    if (error) return negative(error);
    if (own->port.state != IBV_PORT_ACTIVE) return -ENETDOWN;
    struct ibv_device_attr device;
    error = ibv_query_device(own->context, &device);
    if (error) return negative(error);
    own->reads_max = device.max_qp_rd_atom < READS_MAX ? device.max_qp_rd_atom : READS_MAX;
    error = find_gid(own);
    if (error) return error;
    own->domain = ibv_alloc_pd(own->context);
    if (!own->domain) return last_error();
    own->channel = ibv_create_comp_channel(own->context);
    if (!own->channel) return last_error();
    int flags = fcntl(own->channel->fd, F_GETFL);
    if (fcntl(own->channel->fd, F_SETFL, flags | O_NONBLOCK) != 0) return last_error();
    own->completions = ibv_create_cq(own->context, 2 * READS_MAX, NULL, own->channel, 0);
    if (!own->completions) return last_error();
    return make_pair(own);
}

// Ends the reads of both sides: after this none begins.
void farrow_rdma_stop(struct farrow_rdma *own) {
    struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_ERR};
    ibv_modify_qp(own->pair, &attributes, IBV_QP_STATE);
}

// Registrations end before this.
void farrow_rdma_close(struct farrow_rdma *own) {
    if (own->pair) ibv_destroy_qp(own->pair);
    if (own->completions) ibv_destroy_cq(own->completions);
    if (own->channel) ibv_destroy_comp_channel(own->channel);
    if (own->domain) ibv_dealloc_pd(own->domain);
    if (own->context) ibv_close_device(own->context);
    free(own);
}

int farrow_rdma_open(const char *name, uint32_t first_packet, struct farrow_rdma **opened) {
    struct farrow_rdma *own = calloc(1, sizeof *own);
    if (!own) return -ENOMEM;
    own->first_packet = first_packet & 0xffffff;
    int error = prepare(own, name);
    if (error) {
        farrow_rdma_close(own);
        return error;
    }
    *opened = own;
    return 0;
}

void farrow_rdma_address(const struct farrow_rdma *own, struct farrow_rdma_address *address) {
    memcpy(address->gid, own->gid.raw, sizeof address->gid);
    address->pair = own->pair->qp_num;
    address->first_packet = own->first_packet;
    address->lid = own->port.lid;
    address->mtu = own->port.active_mtu;
    address->reads_max = own->reads_max;
}

static int smaller(uint32_t one, int other) { return one < (uint32_t)other ? (int)one : other; }

// The address is input of a peer: the device refuses what it cannot use.
int farrow_rdma_connect(struct farrow_rdma *own, const struct farrow_rdma_address *peer) {
    struct ibv_qp_attr attributes = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = smaller(peer->mtu, own->port.active_mtu),
        .dest_qp_num = peer->pair & 0xffffff,
        .rq_psn = peer->first_packet & 0xffffff,
        .max_dest_rd_atomic = own->reads_max,
        .min_rnr_timer = NOT_READY_TIMER,
        .ah_attr = {
            .is_global = 1,
            .port_num = PORT,
            .dlid = peer->lid,
            .grh = {.hop_limit = HOPS_MAX, .sgid_index = own->gid_index},
        },
    };
    memcpy(attributes.ah_attr.grh.dgid.raw, peer->gid, sizeof peer->gid);
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    int error = ibv_modify_qp(own->pair, &attributes, mask);
    if (error) return negative(error);
    memset(&attributes, 0, sizeof attributes);
    attributes.qp_state = IBV_QPS_RTS;
    attributes.sq_psn = own->first_packet;
    attributes.timeout = TIMEOUT;
    attributes.retry_cnt = RETRIES;
    attributes.rnr_retry = RETRIES - 1;
    own->reads_max = smaller(peer->reads_max, own->reads_max);
    if (own->reads_max == 0) return -EINVAL;
    attributes.max_rd_atomic = own->reads_max;
    mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
           IBV_QP_MAX_QP_RD_ATOMIC;
    error = ibv_modify_qp(own->pair, &attributes, mask);
    return error ? negative(error) : 0;
}

int farrow_rdma_reads_max(const struct farrow_rdma *own) { return own->reads_max; }

// For reads of the peer, or for the bytes of own reads. A read names a byte by its offset, so that
// no peer learns an address.
int farrow_rdma_register(struct farrow_rdma *own, void *start, size_t length, uint64_t offset,
                         int is_for_peer, struct ibv_mr **registered, uint32_t *key) {
    int access = is_for_peer ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_LOCAL_WRITE;
    *registered = ibv_reg_mr_iova(own->domain, start, length, offset, access);
    if (!*registered) return last_error();
    *key = is_for_peer ? (*registered)->rkey : (*registered)->lkey;
    return 0;
}

int farrow_rdma_unregister(struct ibv_mr *registered) {
    int error = ibv_dereg_mr(registered);
    return error ? negative(error) : 0;
}

int farrow_rdma_read(struct farrow_rdma *own, uint64_t to, uint32_t local, uint64_t from,
                     uint32_t remote, uint32_t length) {
    struct ibv_sge place = {.addr = to, .length = length, .lkey = local};
    struct ibv_send_wr wanted = {
        .sg_list = &place,
        .num_sge = 1,
        .opcode = IBV_WR_RDMA_READ,
        .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = {.remote_addr = from, .rkey = remote},
    };
    struct ibv_send_wr *refused = NULL;
    int error = ibv_post_send(own->pair, &wanted, &refused);
    return error ? negative(error) : 0;
}

// The number of reads that have ended; -EREMOTEIO, with the status of the verbs, if one failed.
int farrow_rdma_ended(struct farrow_rdma *own, int *status) {
    struct ibv_wc ended[READS_MAX];
    int count = ibv_poll_cq(own->completions, READS_MAX, ended);
    for (int at = 0; at < count; at++) {
        if (ended[at].status != IBV_WC_SUCCESS) {
            *status = ended[at].status;
            return -EREMOTEIO;
        }
    }
    return count < 0 ? -EIO : count;
}

// Waits until something may have ended. Ask farrow_rdma_ended after farrow_rdma_arm, before this.
int farrow_rdma_arm(struct farrow_rdma *own) {
    int error = ibv_req_notify_cq(own->completions, 0);
    return error ? negative(error) : 0;
}

int farrow_rdma_wait(struct farrow_rdma *own, int milliseconds) {
    struct pollfd waited = {.fd = own->channel->fd, .events = POLLIN};
    int count = poll(&waited, 1, milliseconds);
    if (count < 0) return errno == EINTR ? 0 : last_error();
    if (count == 0) return 0;
    struct ibv_cq *of = NULL;
    void *context = NULL;
    if (ibv_get_cq_event(own->channel, &of, &context) != 0) {
        return errno == EAGAIN ? 0 : last_error();
    }
    ibv_ack_cq_events(of, 1);
    return 0;
}

const char *farrow_rdma_status(int status) { return ibv_wc_status_str(status); }
