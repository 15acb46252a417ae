//! Names of the requests, for spans and statistics.

use crate::RequestBody;

impl RequestBody {
    /// The kind of request, as a word.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Hello(_) => "hello",
            Self::Grant { .. } => "grant",
            Self::Release { .. } => "release",
            Self::Reserve { .. } => "reserve",
            Self::Unreserve { .. } => "unreserve",
            Self::Renew { .. } => "renew",
            Self::ReserveObjects { .. } => "reserve_objects",
            Self::UnreserveObjects { .. } => "unreserve_objects",
            Self::ReservedObjects { .. } => "reserved_objects",
            Self::Seal { .. } => "seal",
            Self::Confirm { .. } => "confirm",
            Self::ConfirmEarlier => "confirm_earlier",
            Self::Delete { .. } => "delete",
            Self::Wait { .. } => "wait",
            Self::HoldBlock => "hold_block",
            Self::Reclaim => "reclaim",
            Self::Stats => "stats",
            Self::Goodbye => "goodbye",
            Self::Shutdown => "shutdown",
            Self::Handover { .. } => "handover",
            Self::Listen(_) => "listen",
            Self::Watch(_) => "watch",
            Self::Pin { .. } => "pin",
            Self::Evict { .. } => "evict",
            Self::Restore { .. } => "restore",
            Self::Overview { .. } => "overview",
            Self::EntryPages { .. } => "entry_pages",
            Self::CreateNamespace(_) => "create_namespace",
            Self::DropNamespace { .. } => "drop_namespace",
            Self::Namespaces => "namespaces",
            Self::Sync { .. } => "sync",
            Self::FindLost { .. } => "find_lost",
            Self::Nodes => "nodes",
            Self::Forget { .. } => "forget",
            Self::SetRule(_) => "set_rule",
            Self::RemoveRule { .. } => "remove_rule",
            Self::Rules => "rules",
            Self::Room(_) => "room",
            Self::Cancel { .. } => "cancel",
            Self::Fetch { .. } => "fetch",
            Self::ListAt { .. } => "list_at",
            Self::Import { .. } => "import",
            Self::FindAt { .. } => "find_at",
            Self::EndLeases { .. } => "end_leases",
            Self::Set(_) => "set",
            Self::OpenLazy(_) => "open_lazy",
            Self::Pages { .. } => "pages",
            Self::Drain(_) => "drain",
        }
    }
}
