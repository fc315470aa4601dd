/* epoch.h in the model checker. Readers follow links to nodes that writers replace, retire and free.
 *
 * A node's contents are a variable that nothing but the protocol guards: its destructor overwrites it, so a free that
 * is not ordered after every read of a pinned reader is a data race in each schedule, not only in those where it really
 * comes too early.
 */
#ifndef EPOCH_SUITES_H
#define EPOCH_SUITES_H

#include "manytail/epoch.h"

struct epoch_node {
    mt_retired retired;
    mt_atomic_uptr next;
    rl::var<int> *content;
    int *freed;
};

static void free_epoch_node(mt_retired *retired) {
    epoch_node *n = (epoch_node *)retired;
    (*n->content)($) = -1;
    ++*n->freed;
    free(n);
}

struct epoch_suite : run_by_checker {
    static const int nnodes = 6;
    struct contents {
        rl::var<int> of[nnodes];
    };
    mt_epoch domain;
    mt_atomic_uptr link, link2;
    contents *content;
    int freed[nnodes], made;

    void before() { begin(1); }

    void begin(int64_t every) {
        mt_epoch_init(&domain, every);
        content = model_variable<contents>();
        made = 0;
        memset((void *)&link, 0, sizeof link);
        memset((void *)&link2, 0, sizeof link2);
        /* relacy gives no thread the value that a variable was made with once there is a newer one; what was stored it
         * does. */
        mt_store_relaxed_i64(&domain.epoch, 0);
        mt_store_relaxed_uptr(&domain.blocks[0], 0);
        for (int i = 0; i < MT_EPOCH_FIRST; i++) mt_store_relaxed_i64(&domain.first[i].word, 0);
        mt_store_relaxed_uptr(&link, (uintptr_t)node());
        mt_store_relaxed_uptr(&link2, (uintptr_t)node());
    }

    epoch_node *node() {
        int i = made++;
        epoch_node *n = (epoch_node *)malloc(sizeof *n);
        n->content = &content->of[i];
        n->freed = &freed[i];
        freed[i] = 0;
        (*n->content)($) = i + 1;
        mt_store_relaxed_uptr(&n->next, 0);
        return n;
    }

    /* Twice, as one who stands on a node and looks again. */
    void read(mt_atomic_uptr *from) {
        epoch_node *n = (epoch_node *)mt_load_acquire_uptr(from);
        if (n == NULL) return;
        RL_ASSERT((*n->content)($) > 0);
        mt_load_acquire_uptr(&n->next);
        RL_ASSERT((*n->content)($) > 0);
    }

    void unpin(mt_pin *p) { mt_retired_free(mt_epoch_unpin(&domain, p)); }

    void drain() { mt_retired_free(mt_epoch_drain(&domain)); }

    void pinned_read(mt_atomic_uptr *from) {
        mt_pin *p = mt_epoch_pin(&domain);
        read(from);
        unpin(p);
    }

    /* The unlink is a plain release store: the protocol must not need more. */
    void replace(mt_pin *p, mt_atomic_uptr *from, epoch_node *by) {
        epoch_node *old = (epoch_node *)mt_load_acquire_uptr(from);
        mt_store_release_uptr(from, (uintptr_t)by);
        mt_epoch_retire(p, &old->retired, free_epoch_node);
    }

    void pinned_replace(mt_atomic_uptr *from, epoch_node *by) {
        mt_pin *p = mt_epoch_pin(&domain);
        replace(p, from, by);
        unpin(p);
    }

    /* All is freed once, in the end. */
    void after() {
        pinned_replace(&link, NULL);
        pinned_replace(&link2, NULL);
        drain(); /* nobody is pinned: this must do */
        for (int i = 0; i < made; i++) RL_ASSERT(freed[i] == 1);
        RL_ASSERT(mt_epoch_destroy(&domain) == NULL);
        RL_ASSERT(model_end_memory() == 0);
    }
};

/* A reader that pins while another unlinks, retires, advances as far as it gets, and frees; twice, so that stale epochs
 * occur. */
struct epoch_reader : suite<epoch_suite, 2, 3> {
    void one() {
        pinned_read(&link);
        pinned_read(&link2);
    }
    void two() {
        pinned_replace(&link, node());
        pinned_replace(&link2, node());
    }
};

/* As above, and a third thread advances at any moment. */
struct epoch_advance : suite<epoch_suite, 3> {
    void one() { pinned_read(&link); }
    void two() { pinned_replace(&link, node()); }
    void three() { drain(); }
};

/* The rest of a collection whose scan lies back makes the first of the two advances: only the epoch itself can tell a
 * reader what was unlinked meanwhile. */
struct epoch_late_advance : suite<epoch_suite, 3> {
    mt_pin *late;
    void before() {
        begin(1);
        late = mt_epoch_pin(&domain);
    }
    void one() { pinned_read(&link); }
    void two() {
        pinned_replace(&link, node());
        drain();
    }
    void three() {
        mt_limbo ready = {NULL, NULL};
        int64_t epoch = 0;
        mt_epoch_advance(&domain, late, &epoch, &ready);
        mt_pin_end(late);
    }
};

/* A collector loses its advance to another one, and then takes over what was retired after that: only the new epoch can
 * stamp it. The reader pinned between the two, in a record that the collector has passed. */
struct epoch_lost_advance : suite<epoch_suite, 3> {
    mt_pin *late;
    void before() {
        mt_pin *two, *three;
        begin(100);
        late = mt_epoch_pin(&domain);
        two = mt_epoch_pin(&domain);
        three = mt_epoch_pin(&domain); /* in the second block: for the writer, while the reader has the second record */
        mt_pin_end(three);
        mt_pin_end(two);
    }
    void one() { mt_retired_free(mt_epoch_collect(&domain, late)); }
    void two() {
        drain();
        pinned_read(&link);
    }
    void three() { pinned_replace(&link, node()); }
};

/* Two writers, each frees what the other may be reading, and finds the other's records and garbage. */
struct epoch_writers : suite<epoch_suite, 2, 3> {
    void one() { read_and_replace(&link2, &link); }
    void two() { read_and_replace(&link, &link2); }
    void read_and_replace(mt_atomic_uptr *others, mt_atomic_uptr *own) {
        mt_pin *p = mt_epoch_pin(&domain);
        read(others);
        replace(p, own, node());
        read(others);
        unpin(p);
    }
};

/* Garbage is left in records whose owners have gone; others take over records and garbage while it is collected. */
struct epoch_reuse : suite<epoch_suite, 3> {
    void before() { begin(100); }
    void one() {
        pinned_replace(&link, node());
        drain();
    }
    void two() { pinned_replace(&link2, node()); }
    void three() { pinned_read(&link); }
};

/* A reader's record lies in a block that came when the collector's own pin was old: only its scan can tell it of the
 * block. */
struct epoch_unseen_block : suite<epoch_suite, 2, 3> {
    mt_pin *early, *other;
    void before() {
        begin(1);
        early = mt_epoch_pin(&domain);
        other = mt_epoch_pin(&domain);
    }
    void one() { pinned_read(&link); }
    void two() {
        replace(early, &link, node());
        unpin(early);
        unpin(other);
        drain();
    }
};

/* More pins than records: a block is added, by two threads at once or while a scan is under way. */
struct epoch_growth : suite<epoch_suite, 3, 1> {
    void one() {
        mt_pin *p = mt_epoch_pin(&domain), *inner = mt_epoch_pin(&domain);
        unpin(p); /* the other one goes on */
        read(&link);
        unpin(inner);
    }
    void two() { one(); }
    void three() {
        mt_pin *p = mt_epoch_pin(&domain);
        replace(p, &link, node());
        unpin(p);
    }
};

#endif
