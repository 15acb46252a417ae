//! IPC messages: from record batches to bytes and back.

use crate::describe::{NodeHead, Reference, Sink};
use crate::error::InvalidDescriptor;
use crate::layout::ArrayLayout;
use arrow_ipc as ipc;
use flatbuffers::FlatBufferBuilder;

/// First bytes of every encapsulated message since Arrow 0.15.
const CONTINUATION: [u8; 4] = [0xff; 4];
/// Bytes of the continuation marker and the metadata length.
const PREFIX_BYTES: usize = 8;

/// A record batch or dictionary batch whose copied area has no region offset yet.
#[derive(Debug, Default)]
pub(super) struct BatchMessage {
    /// Id of a dictionary batch.
    dictionary: Option<i64>,
    rows: u64,
    /// Length and null count of each node.
    nodes: Vec<(u64, u64)>,
    buffers: Vec<Reference>,
    /// Number of data buffers of each view array.
    data_buffers: Vec<i64>,
}

impl Sink for BatchMessage {
    const IS_NORMALISED: bool = true;

    fn batch(&mut self, rows: u64) {
        self.rows = rows;
    }

    fn node(&mut self, head: NodeHead) {
        let length = head.length as u64;
        // IPC counts every element of a null array as a null.
        let nulls = if head.layout == ArrayLayout::Null { length } else { 0 };
        self.nodes.push((length, head.null_count.map_or(nulls, |count| count as u64)));
        if head.layout.has_validity() && head.null_count.is_none() {
            self.buffers.push(Reference::Empty);
        }
    }

    fn validity(&mut self, _bit_offset: usize, bits: Reference) {
        self.buffers.push(bits);
    }

    fn data_buffers(&mut self, count: usize) {
        self.data_buffers.push(count as i64);
    }

    fn buffer(&mut self, bytes: Reference) {
        self.buffers.push(bytes);
    }

    fn shared_dictionary(&mut self, _number: u64) {}

    fn bytes(&self) -> u64 {
        0
    }
}

impl BatchMessage {
    /// An empty record batch, or an empty dictionary batch if an id is given.
    pub fn new(dictionary: Option<i64>) -> Self {
        BatchMessage { dictionary, ..BatchMessage::default() }
    }

    /// The encapsulated message. The copied area begins at region offset `base`.
    pub fn message(&self, base: u64, region_bytes: u64) -> Vec<u8> {
        let mut builder = FlatBufferBuilder::new();
        let nodes = self.nodes.iter();
        let nodes: Vec<_> = nodes
            .map(|(length, nulls)| ipc::FieldNode::new(*length as i64, *nulls as i64))
            .collect();
        let buffers = self.buffers.iter().map(|reference| match *reference {
            Reference::Empty => ipc::Buffer::new(0, 0),
            Reference::InPlace(offset, length) => ipc::Buffer::new(offset as i64, length as i64),
            Reference::Copied(offset, length) => {
                ipc::Buffer::new(base.saturating_add(offset) as i64, length as i64)
            }
        });
        let buffers: Vec<_> = buffers.collect();
        let nodes = builder.create_vector(&nodes);
        let buffers = builder.create_vector(&buffers);
        let counts =
            (!self.data_buffers.is_empty()).then(|| builder.create_vector(&self.data_buffers));
        let mut batch = ipc::RecordBatchBuilder::new(&mut builder);
        batch.add_length(self.rows as i64);
        batch.add_nodes(nodes);
        batch.add_buffers(buffers);
        if let Some(counts) = counts {
            batch.add_variadicBufferCounts(counts);
        }
        let batch = batch.finish();
        let (header_type, header) = match self.dictionary {
            None => (ipc::MessageHeader::RecordBatch, batch.as_union_value()),
            Some(id) => {
                let mut dictionary = ipc::DictionaryBatchBuilder::new(&mut builder);
                dictionary.add_id(id);
                dictionary.add_data(batch);
                (ipc::MessageHeader::DictionaryBatch, dictionary.finish().as_union_value())
            }
        };
        let mut message = ipc::MessageBuilder::new(&mut builder);
        message.add_version(ipc::MetadataVersion::V5);
        message.add_header_type(header_type);
        message.add_bodyLength(region_bytes as i64);
        message.add_header(header);
        let message = message.finish();
        builder.finish(message, None);
        encapsulate(builder.finished_data())
    }
}

/// Adds the prefix to a flatbuffer, and pads it to 8 bytes.
pub(super) fn encapsulate(metadata: &[u8]) -> Vec<u8> {
    let padded = metadata.len().next_multiple_of(8);
    let mut message = Vec::with_capacity(PREFIX_BYTES + padded);
    message.extend(CONTINUATION);
    message.extend((padded as u32).to_le_bytes());
    message.extend(metadata);
    message.resize(PREFIX_BYTES + padded, 0);
    message
}

/// The flatbuffer of an encapsulated message.
pub(super) fn open(message: &[u8]) -> Result<ipc::Message<'_>, InvalidDescriptor> {
    let bad = |reason: String| InvalidDescriptor::BadMessage { reason };
    let Some((prefix, metadata)) = message.split_first_chunk::<PREFIX_BYTES>() else {
        return Err(bad(format!("{} bytes are too few", message.len())));
    };
    let [a, b, c, d, length @ ..] = *prefix;
    if [a, b, c, d] != CONTINUATION {
        return Err(bad("it does not begin with the continuation marker".into()));
    }
    let stated = u32::from_le_bytes(length);
    if u64::from(stated) != metadata.len() as u64 {
        return Err(bad(format!("it says {stated} bytes, has {}", metadata.len())));
    }
    let opened = ipc::root_as_message(metadata).map_err(|error| bad(error.to_string()))?;
    if opened.version() != ipc::MetadataVersion::V5 {
        return Err(InvalidDescriptor::Unsupported { what: "IPC metadata before version 5" });
    }
    Ok(opened)
}

/// The record batch in a message, and the id and delta flag of a dictionary batch.
pub(super) fn batch_of<'a>(
    message: &ipc::Message<'a>,
) -> Result<(ipc::RecordBatch<'a>, Option<(i64, bool)>), InvalidDescriptor> {
    let missing = || InvalidDescriptor::BadMessage { reason: "it holds no record batch".into() };
    let (batch, dictionary) = match message.header_as_dictionary_batch() {
        Some(dictionary) => (dictionary.data(), Some((dictionary.id(), dictionary.isDelta()))),
        None => (message.header_as_record_batch(), None),
    };
    let batch = batch.ok_or_else(missing)?;
    if batch.compression().is_some() {
        return Err(InvalidDescriptor::Unsupported { what: "compressed IPC bodies" });
    }
    Ok((batch, dictionary))
}

/// The dissociated body of a record batch or dictionary message: total bytes, number of
/// buffers, then offset (relative to the region) and length of each; all 64-bit, little-endian.
///
/// # Errors
/// [`InvalidDescriptor`] if the message is neither.
pub fn body_of(message: &[u8]) -> Result<Vec<u8>, InvalidDescriptor> {
    let opened = open(message)?;
    let (batch, _) = batch_of(&opened)?;
    let buffers: Vec<_> = batch.buffers().into_iter().flatten().collect();
    let total: i64 = buffers.iter().fold(0, |sum, buffer| sum.saturating_add(buffer.length()));
    let mut body = Vec::with_capacity(16 + 16 * buffers.len());
    body.extend(total.to_le_bytes());
    body.extend((buffers.len() as u64).to_le_bytes());
    for buffer in buffers {
        body.extend(buffer.offset().to_le_bytes());
        body.extend(buffer.length().to_le_bytes());
    }
    Ok(body)
}
