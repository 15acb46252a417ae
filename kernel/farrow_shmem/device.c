// SPDX-License-Identifier: GPL-2.0
/*
 * farrow_shmem: memory that processes share and whose cache maintenance can be measured.
 *
 * /dev/farrow_shmem is a file of at most max_bytes bytes, in blocks of 2^order contiguous pages
 * that are made when somebody touches them. Whoever opens it with the same order shares its pages;
 * they go when the last file and mapping of that order goes. A mapping that goes (all of it or a
 * part) is cleaned, or cleaned and invalidated, to the point of coherency, block by block.
 *
 * The design is that of the module in Z. Chen, "Analysis of Software-Maintained Cache Coherency in
 * ARMv8-A for Cross-Architectural DSM Systems" (2024); the code is new.
 */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/uaccess.h>
#include <linux/version.h>

#include "farrow_shmem.h"

static unsigned int order;
static int order_set(const char *value, const struct kernel_param *parameter)
{
	return param_set_uint_minmax(value, parameter, 0, FARROW_SHMEM_ORDER_MAX);
}
static const struct kernel_param_ops order_operations = {
	.set = order_set,
	.get = param_get_uint,
};
module_param_cb(order, &order_operations, &order, 0644);
MODULE_PARM_DESC(order, "log2 of the pages of a block, 0 to 10, for files opened from now on");

static bool invalidate;
module_param(invalidate, bool, 0644);
MODULE_PARM_DESC(invalidate, "clean and invalidate what is unmapped, instead of only cleaning it");

static ulong max_bytes;
module_param(max_bytes, ulong, 0644);
MODULE_PARM_DESC(max_bytes, "most bytes at a time; 0, the default: a quarter of the memory");

static unsigned int all_caches;
static int all_caches_set(const char *value, const struct kernel_param *parameter)
{
	return param_set_uint_minmax(value, parameter, 0, 2);
}
static const struct kernel_param_ops all_caches_operations = {
	.set = all_caches_set,
	.get = param_get_uint,
};
module_param_cb(all_caches, &all_caches_operations, &all_caches, 0644);
MODULE_PARM_DESC(all_caches, "who opened the device may write back all caches: 0, the default: no; "
			     "1: but not in a guest, where it may do nothing; 2: in a guest too");

u64 farrow_shmem_bytes_max(void)
{
	const ulong said = READ_ONCE(max_bytes);

	return said ? said : (u64)totalram_pages() * PAGE_SIZE / 4;
}

static enum farrow_shmem_op unmap_op(void)
{
	return READ_ONCE(invalidate) ? FARROW_SHMEM_CLEAN_INVALIDATE : FARROW_SHMEM_CLEAN;
}

static struct farrow_shmem_space *space_of(const struct vm_area_struct *vma)
{
	return vma->vm_file->private_data;
}

/*
 * Maps all pages of a block that lie in the mapping. Neither end of the block need lie in it: the
 * mapping may begin and end anywhere. Another thread may be doing the same; pages that are mapped
 * already stay as they are. Only the page that was touched has to succeed: others are touched, and
 * come here, again.
 */
static vm_fault_t map_block(struct vm_fault *fault, struct page *page, pgoff_t block,
			    pgoff_t block_end)
{
	struct vm_area_struct *vma = fault->vma;
	const pgoff_t first = max(block, vma->vm_pgoff);
	const pgoff_t end = min(block_end, vma->vm_pgoff + vma_pages(vma));
	const unsigned long pfn = page_to_pfn(page);
	vm_fault_t result;
	pgoff_t at;

	result = vmf_insert_pfn(vma, fault->address & PAGE_MASK, pfn + (fault->pgoff - block));
	if (result != VM_FAULT_NOPAGE)
		return result;
	for (at = first; at < end; at++) {
		const unsigned long address = vma->vm_start + ((at - vma->vm_pgoff) << PAGE_SHIFT);

		if (at != fault->pgoff &&
		    vmf_insert_pfn(vma, address, pfn + (at - block)) != VM_FAULT_NOPAGE)
			break;
	}
	return VM_FAULT_NOPAGE;
}

/*
 * SIGBUS, not VM_FAULT_OOM, where there is no memory: since 5.16 a kernel that gets that answer
 * retries the fault for ever when nothing is to be gained by killing.
 */
static noinline vm_fault_t farrow_shmem_fault(struct vm_fault *fault)
{
	struct farrow_shmem_space *space = space_of(fault->vma);
	const pgoff_t number = fault->pgoff >> space->order;
	const pgoff_t block = number << space->order;
	struct page *page;

	atomic64_inc(&farrow_shmem_counters.faults);
	page = farrow_shmem_space_block(space, number);
	if (IS_ERR(page)) {
		atomic64_inc(&farrow_shmem_counters.faults_refused);
		return VM_FAULT_SIGBUS;
	}
	return map_block(fault, page, block, block + (1UL << space->order));
}

static void farrow_shmem_vma_open(struct vm_area_struct *vma)
{
	atomic64_inc(&farrow_shmem_counters.mappings_live);
}

/* Page tables are gone and TLBs flushed: nothing dirties these pages through it any more. */
static void farrow_shmem_vma_close(struct vm_area_struct *vma)
{
	farrow_shmem_space_maintain(space_of(vma), vma->vm_pgoff,
				    vma->vm_pgoff + vma_pages(vma), unmap_op(),
				    FARROW_SHMEM_UNMAP);
	atomic64_dec(&farrow_shmem_counters.mappings_live);
}

static const struct vm_operations_struct vma_operations = {
	.open = farrow_shmem_vma_open,
	.close = farrow_shmem_vma_close,
	.fault = farrow_shmem_fault,
};

static int farrow_shmem_mmap(struct file *file, struct vm_area_struct *vma)
{
	const u64 pages_max = farrow_shmem_bytes_max() >> PAGE_SHIFT;
	/* No access by page descriptors, no growing, nothing in core dumps. */
	const unsigned long flags = VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP;

	/* A private mapping would copy pages that nobody maintains. */
	if (!(vma->vm_flags & VM_MAYSHARE))
		return -EINVAL;
	if (vma_pages(vma) > pages_max || vma->vm_pgoff > pages_max - vma_pages(vma))
		return -ENOMEM;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_set(vma, flags);
#else
	vma->vm_flags |= flags;
#endif
	vma->vm_ops = &vma_operations;
	farrow_shmem_vma_open(vma);
	return 0;
}

static int farrow_shmem_open(struct inode *inode, struct file *file)
{
	struct farrow_shmem_space *space = farrow_shmem_space_get(READ_ONCE(order));

	if (IS_ERR(space))
		return PTR_ERR(space);
	file->private_data = space;
	return 0;
}

static int farrow_shmem_release(struct inode *inode, struct file *file)
{
	farrow_shmem_space_put(file->private_data);
	return 0;
}

static int write_back_all(void)
{
	const unsigned int allowed = READ_ONCE(all_caches);
	int error;

	if (allowed == 0 || (allowed == 1 && farrow_shmem_in_guest()))
		return -EPERM;
	error = farrow_shmem_write_back_all();
	if (!error)
		atomic64_inc(&farrow_shmem_counters.write_backs_of_all);
	return error;
}

static long farrow_shmem_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct farrow_shmem_range range;
	u64 end;

	if (command == FARROW_SHMEM_WRITE_BACK_ALL)
		return argument ? -EINVAL : write_back_all();
	if (command != FARROW_SHMEM_MAINTAIN)
		return -ENOTTY;
	if (copy_from_user(&range, (void __user *)argument, sizeof(range)))
		return -EFAULT;
	if (range.op >= FARROW_SHMEM_OPS || range.reserved)
		return -EINVAL;
	if (!PAGE_ALIGNED(range.offset) || !PAGE_ALIGNED(range.bytes) ||
	    check_add_overflow(range.offset, range.bytes, &end))
		return -EINVAL;
	/* It throws stores away, so it is for those who could have overwritten them. */
	if (range.op == FARROW_SHMEM_INVALIDATE && !(file->f_mode & FMODE_WRITE))
		return -EBADF;
	return farrow_shmem_space_maintain(file->private_data, range.offset >> PAGE_SHIFT,
					   end >> PAGE_SHIFT, range.op, FARROW_SHMEM_IOCTL);
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = farrow_shmem_open,
	.release = farrow_shmem_release,
	.mmap = farrow_shmem_mmap,
	.unlocked_ioctl = farrow_shmem_ioctl,
	.llseek = noop_llseek,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "farrow_shmem",
	.fops = &operations,
	.mode = 0600,
};

static int __init farrow_shmem_init(void)
{
	int error;

	farrow_shmem_maintain_init();
	error = farrow_shmem_record_init();
	if (error)
		return error;
	error = misc_register(&device);
	if (error)
		farrow_shmem_record_exit();
	return error;
}

/* No file is open: each keeps the module. */
static void __exit farrow_shmem_exit(void)
{
	misc_deregister(&device);
	farrow_shmem_record_exit();
}

module_init(farrow_shmem_init);
module_exit(farrow_shmem_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Shared memory whose cache maintenance is measured");
