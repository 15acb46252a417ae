//! A Python process on one of the nodes. It maps the node's copy, and reads tables there.

use std::io::{BufReader, Cursor, Read, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_data::ArrayData;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::Schema;
use farrow_arrow::{ArrowObject, BatchData};
use farrow_memory::{Address, Fabric, Region, Section};
use serde_json::{Value, json};

use crate::tables::OriginalTable;
use crate::{StepResult, text};

/// Time limit of an answer: the first import of pyarrow takes seconds on a busy machine.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Maximum size of an answer: tables are a few pages long.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// Succeeds if pyarrow is installed. Does not import it, which would take a second.
const HAS_PYARROW: &str =
    "import importlib.util, sys; sys.exit(importlib.util.find_spec('pyarrow') is None)";

/// An interpreter that has pyarrow: that of the bindings' build, or that of the environment.
pub fn find() -> Option<PathBuf> {
    let environment = std::env::var_os("VIRTUAL_ENV").map(PathBuf::from);
    let candidates = [
        std::env::var_os("PYO3_PYTHON").map(PathBuf::from),
        environment.map(|path| path.join("bin/python")),
        Some(PathBuf::from("python3")),
    ];
    candidates.into_iter().flatten().find(|python| {
        let found = Command::new(python).args(["-c", HAS_PYARROW]).status();
        found.is_ok_and(|status| status.success())
    })
}

/// The process. It is killed when this value is dropped.
pub struct Python {
    child: Child,
    requests: ChildStdin,
    answers: Receiver<StepResult<Vec<u8>>>,
}

impl Drop for Python {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Python {
    pub fn start(python: &PathBuf) -> StepResult<Self> {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/arrow_readers/reader.py");
        let mut command = Command::new(python);
        command.arg(program).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(text)?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (requests, answers) = pipes.ok_or("no pipes to Python")?;
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let mut answers = BufReader::new(answers);
            while let Ok(answer) = read_answer(&mut answers) {
                if sender.send(answer).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, requests, answers: receiver })
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    fn ask(&mut self, request: &Value) -> StepResult<Vec<u8>> {
        writeln!(self.requests, "{request}").map_err(text)?;
        self.requests.flush().map_err(text)?;
        self.answers.recv_timeout(ANSWER_MAX).map_err(text)?
    }

    /// Maps a node's copy of the region, read-only.
    pub fn map(&mut self, fabric: &dyn Fabric) -> StepResult<()> {
        let (control, control_at) = fabric.read_fd(Section::Control);
        let geometry = fabric.geometry();
        let (_, data_at) = fabric.read_fd(Section::Data);
        if (control_at, data_at) != (0, geometry.span_of(Section::Data).offset.0) {
            return Err("the copy is not one file from its first byte on".to_owned());
        }
        let path = format!("/proc/{}/fd/{}", std::process::id(), control.as_raw_fd());
        self.ask(&json!({ "map": path })).map(drop)
    }

    /// Reads a table that was rebuilt over this region, and compares every value.
    pub fn compare(
        &mut self,
        region: &Region,
        object: &ArrowObject,
        table: &OriginalTable,
    ) -> StepResult<()> {
        let batches = object.batches.iter().map(|batch| places_of_batch(region, batch));
        let batches = batches.collect::<StepResult<Vec<_>>>()?;
        let schema = schema_stream(&table.schema)?;
        let schema: String = schema.iter().map(|byte| format!("{byte:02x}")).collect();
        let answer = self.ask(&json!({ "schema": schema, "batches": batches }))?;
        let stream = StreamReader::try_new(Cursor::new(answer), None).map_err(text)?;
        let batches: Vec<RecordBatch> = stream.collect::<Result<_, _>>().map_err(text)?;
        let batches: Vec<BatchData> = batches.iter().map(BatchData::from).collect();
        let columns = batches.iter().map(|batch| (batch.rows, batch.columns.as_slice()));
        table.compare_columns(columns)
    }
}

fn read_answer(from: &mut impl Read) -> std::io::Result<StepResult<Vec<u8>>> {
    let mut status = [0; 1];
    from.read_exact(&mut status)?;
    let mut length = [0; 8];
    from.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > ANSWER_BYTES_MAX {
        let what = format!("an answer of {length} B, at most {ANSWER_BYTES_MAX}");
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, what));
    }
    let mut bytes = vec![0; length as usize];
    from.read_exact(&mut bytes)?;
    Ok(if status == [0] { Ok(bytes) } else { Err(String::from_utf8_lossy(&bytes).into_owned()) })
}

fn schema_stream(schema: &Schema) -> StepResult<Vec<u8>> {
    let mut writer = StreamWriter::try_new(Vec::new(), schema).map_err(text)?;
    writer.finish().map_err(text)?;
    writer.into_inner().map_err(text)
}

fn places_of_batch(region: &Region, batch: &BatchData) -> StepResult<Value> {
    let columns = batch.columns.iter().map(|column| places_of(region, column));
    Ok(json!({ "rows": batch.rows, "columns": columns.collect::<StepResult<Vec<_>>>()? }))
}

/// The offsets of an array's buffers in the region.
fn places_of(region: &Region, array: &ArrayData) -> StepResult<Value> {
    let place = |buffer: &Buffer| match region.offset_of(Address(buffer.as_ptr() as usize)) {
        // A placeholder for the buffers of an empty array.
        None if array.is_empty() || buffer.is_empty() => Ok(json!([0, 0])),
        None => Err(format!("a buffer of {} B that is not in the region", buffer.len())),
        Some(offset) => Ok(json!([offset.0, buffer.len()])),
    };
    let validity = match array.nulls() {
        Some(nulls) if nulls.offset() != array.offset() => {
            return Err("a bitmap that begins elsewhere than its values".to_owned());
        }
        Some(nulls) => place(nulls.buffer())?,
        None => Value::Null,
    };
    let buffers = array.buffers().iter().map(place).collect::<StepResult<Vec<_>>>()?;
    let buffers: Vec<Value> = std::iter::once(validity).chain(buffers).collect();
    let children = array.child_data().iter().map(|child| places_of(region, child));
    Ok(json!({
        "length": array.len(),
        "offset": array.offset(),
        "null_count": array.null_count(),
        "buffers": buffers,
        "children": children.collect::<StepResult<Vec<_>>>()?,
    }))
}
