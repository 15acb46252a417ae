//! Namespaces: resolution of a client's names, and rights of its user.

use farrow_store::{ClientRecord, ClientSlot, Home, Namespace, NamespaceOptions, ObjectId};
use farrow_wire::{NamespaceReport, NamespaceSpec, RequestBody, WireError, WireTarget};

use super::clients::Clients;
use crate::protocol::convert::store_error;

/// The name in the directory of an object of this client.
pub(in crate::protocol) fn full_name(
    home: &Home,
    slot: ClientSlot,
    name: &str,
) -> Result<String, WireError> {
    let namespace = home.namespace_of(slot).map_err(store_error)?;
    let full = farrow_store::full_name(&namespace.options.name, name).map_err(store_error)?;
    Ok(full.into_owned())
}

/// As [`full_name`] for each.
pub(in crate::protocol) fn full_names(
    home: &Home,
    slot: ClientSlot,
    names: &[String],
) -> Result<Vec<String>, WireError> {
    names.iter().map(|name| full_name(home, slot, name)).collect()
}

/// Resolves a target: a name belongs to the client's namespace, an id to any.
pub(in crate::protocol) fn full_target(
    home: &Home,
    slot: ClientSlot,
    target: &WireTarget,
) -> Result<WireTarget, WireError> {
    match target {
        WireTarget::Name(name) => full_name(home, slot, name).map(WireTarget::Name),
        WireTarget::Id(_) => Ok(target.clone()),
    }
}

/// As [`full_target`], for an object that the client is about to change.
pub(in crate::protocol) fn target_to_change(
    home: &Home,
    slot: ClientSlot,
    target: &WireTarget,
) -> Result<WireTarget, WireError> {
    if let WireTarget::Id(id) = *target {
        let id = ObjectId::from(id);
        let theirs = home.namespace_of_object(id).map_err(store_error)?;
        let ours = home.namespace_of(slot).map_err(store_error)?;
        if theirs != ours.id {
            let ours = &ours.options.name;
            return Err(WireError::Denied(format!(
                "object {id} is not in namespace {ours:?} of this client"
            )));
        }
    }
    full_target(home, slot, target)
}

impl Clients {
    /// Whether a client may send this request: its user may write in its namespace, or administers
    /// the node.
    pub(in crate::protocol) fn check_right(
        &self,
        home: &Home,
        slot: ClientSlot,
        body: &RequestBody,
    ) -> Result<(), WireError> {
        let what = match body {
            RequestBody::Grant { .. }
            | RequestBody::Room(_)
            | RequestBody::ReserveObjects { .. }
            | RequestBody::Reserve { .. }
            | RequestBody::ReservedObjects { .. }
            | RequestBody::Seal { .. }
            | RequestBody::EntryPages { .. }
            | RequestBody::Delete { .. }
            | RequestBody::Pin { .. }
            | RequestBody::Evict { .. } => return self.check_writer(home, slot),
            // An empty renewal only gives names back.
            RequestBody::Renew { names, .. } if !names.is_empty() => {
                return self.check_writer(home, slot);
            }
            RequestBody::CreateNamespace(_) => "create namespaces",
            RequestBody::DropNamespace { .. } => "drop namespaces",
            RequestBody::SetRule(_) | RequestBody::RemoveRule { .. } => "set rules for nodes",
            RequestBody::Shutdown => "end the node",
            RequestBody::Forget { .. } => "forget nodes",
            RequestBody::Set(_) => "change settings",
            RequestBody::Drain(_) => "drain the node",
            _ => return Ok(()),
        };
        let ClientRecord { uid, remote_client, .. } = *home.client(slot).map_err(store_error)?;
        if remote_client.is_some() {
            return Err(WireError::Denied(format!("a client of another node may not {what}")));
        }
        if self.is_owner(uid) {
            return Ok(());
        }
        let owner = self.owner_uid();
        Err(WireError::Denied(format!("user {uid} may not {what}: the node is user {owner}'s")))
    }

    /// Whether the client's user may write in its namespace.
    pub(in crate::protocol) fn check_writer(
        &self,
        home: &Home,
        slot: ClientSlot,
    ) -> Result<(), WireError> {
        let NamespaceOptions { name, writers, .. } =
            &home.namespace_of(slot).map_err(store_error)?.options;
        let Some(writers) = writers else {
            return Ok(());
        };
        let ClientRecord { uid, remote_client, .. } = *home.client(slot).map_err(store_error)?;
        if (remote_client.is_none() && self.is_owner(uid)) || writers.contains(&uid) {
            return Ok(());
        }
        Err(WireError::Denied(format!(
            "user {uid} may not write in namespace {name:?}: users {writers:?} may"
        )))
    }
}

/// Creates a namespace. The rules for other nodes apply to it once they are published.
pub(in crate::protocol) fn create_namespace(
    home: &mut Home,
    spec: NamespaceSpec,
) -> Result<(), WireError> {
    let NamespaceSpec { name, bytes_max, objects_max, writers } = spec;
    // A limit beyond the largest region is no limit.
    let objects_max = objects_max.and_then(|max| u32::try_from(max).ok());
    let options = NamespaceOptions { name, bytes_max, objects_max, writers };
    home.create_namespace(&options).map(drop).map_err(store_error)
}

/// All namespaces, with the objects that are registered or spilled.
pub(in crate::protocol) fn namespace_reports(home: &Home) -> Vec<NamespaceReport> {
    let report = |one: &Namespace| {
        let NamespaceOptions { name, bytes_max, objects_max, writers } = one.options.clone();
        let used = home.usage_of_namespace(one.id);
        NamespaceReport {
            name,
            bytes: used.bytes.0,
            bytes_max,
            objects: (used.objects + home.spilled_of_namespace(one.id)).into(),
            objects_max: objects_max.map(u64::from),
            writers,
            clients: home.clients_in(one.id).count() as u64,
        }
    };
    home.namespaces().map(report).collect()
}
