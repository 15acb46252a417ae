//! A region as memory for measurements.

use std::path::Path;
use std::sync::Arc;

use farrow_memory::shm::ShmFabric;
use farrow_memory::sync::{AtomicUsize, Ordering};
use farrow_memory::timing::TimedBuffer;
use farrow_memory::{Access, FabricError, Geometry, Length, MapError, Region, Section, page_bytes};

/// The region cannot be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// Its files cannot be created, for example for lack of memory.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// They cannot be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// The data section of a new region in `directory`, mapped as its writer maps it. The files have no
/// name when this returns, so the memory is free again when the buffer is dropped.
///
/// # Errors
/// [`LabError`] if the region cannot be created or mapped.
pub fn region_buffer(directory: &Path, length: Length) -> Result<TimedBuffer, LabError> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("farrow-lab-{}-{number}", std::process::id());
    let page = page_bytes();
    let data = Length(length.0.next_multiple_of(page));
    let geometry = Geometry { control: Length(page), data }.for_huge_pages();
    let fabric = ShmFabric::create(directory, &name, geometry)?;
    ShmFabric::unlink(directory, &name)?;
    let region = Arc::new(Region::map(Arc::new(fabric), Access::Home, None)?);
    Ok(region.alias(geometry.span_of(Section::Data))?.into_timed()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farrow_memory::copy::StreamMethod;
    use farrow_memory::timing::{Job, LineState, Work};
    use std::num::NonZeroUsize;

    #[test]
    fn a_region_is_written_and_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let page = page_bytes();
        let mut buffer = region_buffer(folder.path(), Length(16 * page - 1)).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(buffer.length() >= Length(16 * page));
        let work = Work::Copy(StreamMethod::Memcpy);
        let (state, threads) = (LineState::Uncached, NonZeroUsize::MIN);
        let (range, source) = (Length(page), Length(page));
        let job = Job { work, state, range, batch: 2, samples: 3, threads, source };
        assert_eq!(buffer.run(&job).unwrap().len(), 3);
        assert_eq!(buffer.as_slice()[..8], [0, 31, 62, 93, 124, 155, 186, 217]);
    }

    #[test]
    fn what_cannot_be_created_is_an_error() {
        let error = region_buffer(Path::new("/nowhere"), Length(1)).unwrap_err();
        assert!(error.to_string().contains("/nowhere"), "{error}");
    }
}
