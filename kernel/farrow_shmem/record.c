// SPDX-License-Identifier: GPL-2.0
/*
 * What was measured: a ring of the last samples, a histogram for each kind of maintenance, and the
 * counters, in /sys/kernel/debug/farrow_shmem/. A module without debugfs works and shows nothing.
 */
#include <linux/debugfs.h>
#include <linux/log2.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/spinlock.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#include "farrow_shmem.h"

/* One unmap of 1 GiB of single pages, the largest of the measurements, fits: 6 MiB. */
#define SAMPLES_MAX (1UL << 18)
/* 2^33 ns are eight seconds; whatever takes longer is in the last one. */
#define BUCKETS 34

struct farrow_shmem_counters farrow_shmem_counters;

static DEFINE_SPINLOCK(lock);
/* Under the lock: */
static struct farrow_shmem_sample *ring;
static u64 recorded;
static u64 calls[FARROW_SHMEM_OPS];
static u64 bytes_maintained[FARROW_SHMEM_OPS];
static u64 histogram[FARROW_SHMEM_OPS][BUCKETS];

static struct dentry *folder;
static const char *const op_names[FARROW_SHMEM_OPS] = { "clean", "clean_invalidate", "invalidate" };

void farrow_shmem_record(u64 at_ns, u64 duration_ns, size_t bytes, enum farrow_shmem_op op,
			 enum farrow_shmem_cause cause)
{
	const struct farrow_shmem_sample sample = {
		.at_ns = at_ns,
		.duration_ns = min_t(u64, duration_ns, U32_MAX),
		.bytes = bytes,
		.pid = current->pid,
		.op = op,
		.cause = cause,
	};
	const unsigned int bucket = duration_ns ? min(ilog2(duration_ns), BUCKETS - 1) : 0;

	spin_lock(&lock);
	ring[recorded++ % SAMPLES_MAX] = sample;
	calls[op]++;
	bytes_maintained[op] += bytes;
	histogram[op][bucket]++;
	spin_unlock(&lock);
}

/* The n-th oldest sample of those that are there. */
static bool sample_at(u64 n, struct farrow_shmem_sample *sample)
{
	bool is_there;

	spin_lock(&lock);
	is_there = n < min_t(u64, recorded, SAMPLES_MAX);
	if (is_there)
		*sample = ring[(recorded > SAMPLES_MAX ? recorded + n : n) % SAMPLES_MAX];
	spin_unlock(&lock);
	return is_there;
}

/* Whole samples, the oldest first. While maintenance goes on, some may come twice or not at all. */
static ssize_t samples_read(struct file *file, char __user *to, size_t bytes, loff_t *position)
{
	struct farrow_shmem_sample sample;
	size_t done = 0;

	if (*position % sizeof(sample) || bytes < sizeof(sample))
		return -EINVAL;
	while (bytes - done >= sizeof(sample) &&
	       sample_at((*position + done) / sizeof(sample), &sample)) {
		if (copy_to_user(to + done, &sample, sizeof(sample)))
			return done ? done : -EFAULT;
		done += sizeof(sample);
		cond_resched();
	}
	*position += done;
	return done;
}

static const struct file_operations samples_operations = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.read = samples_read,
	.llseek = default_llseek,
};

static int histogram_show(struct seq_file *out, void *unused)
{
	unsigned int op, bucket;
	u64 copy[BUCKETS];

	for (op = 0; op < FARROW_SHMEM_OPS; op++) {
		spin_lock(&lock);
		memcpy(copy, histogram[op], sizeof(copy));
		spin_unlock(&lock);
		for (bucket = 0; bucket < BUCKETS; bucket++)
			if (copy[bucket])
				seq_printf(out, "%s %llu %llu\n", op_names[op], 1ULL << bucket,
					   copy[bucket]);
	}
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(histogram);

static int counters_show(struct seq_file *out, void *unused)
{
	const struct farrow_shmem_counters *c = &farrow_shmem_counters;
	unsigned int op;

	seq_printf(out, "pages_allocated %lld\n", atomic64_read(&c->pages_allocated));
	seq_printf(out, "pages_freed %lld\n", atomic64_read(&c->pages_freed));
	seq_printf(out, "blocks_live %lld\n", atomic64_read(&c->blocks_live));
	seq_printf(out, "spaces_live %lld\n", atomic64_read(&c->spaces_live));
	seq_printf(out, "mappings_live %lld\n", atomic64_read(&c->mappings_live));
	seq_printf(out, "faults %lld\n", atomic64_read(&c->faults));
	seq_printf(out, "faults_refused %lld\n", atomic64_read(&c->faults_refused));
	seq_printf(out, "write_backs_of_all %lld\n", atomic64_read(&c->write_backs_of_all));
	for (op = 0; op < FARROW_SHMEM_OPS; op++)
		seq_printf(out, "%s_calls %llu\n%s_bytes %llu\n", op_names[op],
			   READ_ONCE(calls[op]), op_names[op], READ_ONCE(bytes_maintained[op]));
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(counters);

/* Any write forgets samples and histograms; counters go on. */
static ssize_t reset_write(struct file *file, const char __user *from, size_t bytes,
			   loff_t *position)
{
	spin_lock(&lock);
	recorded = 0;
	memset(histogram, 0, sizeof(histogram));
	spin_unlock(&lock);
	return bytes;
}

static const struct file_operations reset_operations = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = reset_write,
	.llseek = noop_llseek,
};

int farrow_shmem_record_init(void)
{
	ring = vzalloc(SAMPLES_MAX * sizeof(*ring));
	if (!ring)
		return -ENOMEM;
	folder = debugfs_create_dir("farrow_shmem", NULL);
	debugfs_create_file("counters", 0400, folder, NULL, &counters_fops);
	debugfs_create_file("histogram", 0400, folder, NULL, &histogram_fops);
	debugfs_create_file("samples", 0400, folder, NULL, &samples_operations);
	debugfs_create_file("reset", 0200, folder, NULL, &reset_operations);
	return 0;
}

void farrow_shmem_record_exit(void)
{
	debugfs_remove_recursive(folder);
	vfree(ring);
}
