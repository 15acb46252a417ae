//! Draining a node: its objects move to other nodes before it leaves.

use serde::{Deserialize, Serialize};

use super::object_id::WireObjectId;

/// A step of a drain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DrainStep {
    /// The node takes no new objects from now on, and notifies the other members.
    Begin,
    /// The node takes new objects again. What has moved stays where it is.
    Cancel,
    /// Reports the state. The reply is a [`DrainReport`].
    Report,
    /// Gives an object and its name to a node, to which this client has brought the bytes by
    /// [`ImportStep::Bring`](super::ImportStep::Bring). The reply is the new id.
    Move {
        /// Its id.
        id: WireObjectId,
        /// The node.
        node: String,
    },
    /// Gives the name of an object to a node, with other bytes: those of an object of this client,
    /// which the node has brought. While the node has an object named `absent`, or an object whose
    /// name begins with the moving one's and a slash is being written, nothing moves.
    MoveAs {
        /// The id of the object that has the name.
        id: WireObjectId,
        /// The node.
        node: String,
        /// The id of the object with the bytes.
        staged: WireObjectId,
        /// A name in the namespace of the client.
        absent: String,
    },
}

/// State of a drain.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainReport {
    /// Name of the node.
    pub node: String,
    /// Whether the node is draining.
    pub is_draining: bool,
    /// Members that do not know of it yet, each with the reason. No object moves before all do.
    pub untold: Vec<(String, String)>,
    /// Objects that moved away since the daemon started.
    pub moved: u64,
    /// Their bytes.
    pub moved_bytes: u64,
    /// Names that clients have reserved for objects which they are writing.
    pub reserved: u64,
    /// Nodes that were lost while an object moved to them. Each removes its copy when it is back.
    pub undone: Vec<String>,
    /// The node to which an object is moving at this moment; empty: none.
    pub moving_to: String,
}
