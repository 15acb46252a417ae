//! Namespaces: resolution of a client's names, and rights of its user.

use farrow_store::{ClientRecord, ClientSlot, Namespace, NamespaceOptions, full_name};
use farrow_wire::{NamespaceReport, NamespaceSpec, ReplyBody, RequestBody, WireError, WireTarget};

use crate::protocol::convert::store_error;
use crate::protocol::state::NodeState;

impl NodeState {
    /// The name in the directory of an object of this client.
    pub(in crate::protocol) fn full_name(
        &self,
        slot: ClientSlot,
        name: &str,
    ) -> Result<String, WireError> {
        let namespace = self.home.namespace_of(slot).map_err(store_error)?;
        let full = full_name(&namespace.options.name, name).map_err(store_error)?;
        Ok(full.into_owned())
    }

    /// As [`Self::full_name`] for each.
    pub(super) fn full_names(
        &self,
        slot: ClientSlot,
        names: &[String],
    ) -> Result<Vec<String>, WireError> {
        names.iter().map(|name| self.full_name(slot, name)).collect()
    }

    /// Resolves a target: a name belongs to the client's namespace, an id to any.
    pub(in crate::protocol) fn full_target(
        &self,
        slot: ClientSlot,
        target: &WireTarget,
    ) -> Result<WireTarget, WireError> {
        match target {
            WireTarget::Name(name) => self.full_name(slot, name).map(WireTarget::Name),
            WireTarget::Id(_) => Ok(target.clone()),
        }
    }

    /// As [`Self::full_target`], for an object that the client is about to change.
    pub(in crate::protocol) fn target_to_change(
        &self,
        slot: ClientSlot,
        target: &WireTarget,
    ) -> Result<WireTarget, WireError> {
        if let WireTarget::Id(id) = *target {
            let id = farrow_store::ObjectId::from(id);
            let theirs = self.home.namespace_of_object(id).map_err(store_error)?;
            let ours = self.home.namespace_of(slot).map_err(store_error)?;
            if theirs != ours.id {
                let ours = &ours.options.name;
                return Err(WireError::Denied(format!(
                    "object {id} is not in namespace {ours:?} of this client"
                )));
            }
        }
        self.full_target(slot, target)
    }

    /// Whether a client may send this request: its user may write in its namespace, or administers
    /// the node.
    pub(in crate::protocol) fn check_right(
        &self,
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
            | RequestBody::Evict { .. } => return self.check_writer(slot),
            // An empty renewal only gives names back.
            RequestBody::Renew { names, .. } if !names.is_empty() => {
                return self.check_writer(slot);
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
        let ClientRecord { uid, remote_client, .. } =
            *self.home.client(slot).map_err(store_error)?;
        if remote_client.is_some() {
            return Err(WireError::Denied(format!("a client of another node may not {what}")));
        }
        if self.clients.is_owner(uid) {
            return Ok(());
        }
        let owner = self.clients.owner_uid();
        Err(WireError::Denied(format!("user {uid} may not {what}: the node is user {owner}'s")))
    }

    /// Whether the client's user may write in its namespace.
    pub(in crate::protocol) fn check_writer(&self, slot: ClientSlot) -> Result<(), WireError> {
        let NamespaceOptions { name, writers, .. } =
            &self.home.namespace_of(slot).map_err(store_error)?.options;
        let Some(writers) = writers else {
            return Ok(());
        };
        let ClientRecord { uid, remote_client, .. } =
            *self.home.client(slot).map_err(store_error)?;
        if (remote_client.is_none() && self.clients.is_owner(uid)) || writers.contains(&uid) {
            return Ok(());
        }
        Err(WireError::Denied(format!(
            "user {uid} may not write in namespace {name:?}: users {writers:?} may"
        )))
    }

    pub(in crate::protocol) fn create_namespace(
        &mut self,
        spec: NamespaceSpec,
    ) -> Result<ReplyBody, WireError> {
        let NamespaceSpec { name, bytes_max, objects_max, writers } = spec;
        // A limit beyond the largest region is no limit.
        let objects_max = objects_max.and_then(|max| u32::try_from(max).ok());
        let options = NamespaceOptions { name, bytes_max, objects_max, writers };
        self.home.create_namespace(&options).map_err(store_error)?;
        self.replicas.publish_rules(&self.rules, &self.home);
        Ok(ReplyBody::Done)
    }

    pub(in crate::protocol) fn drop_namespace(
        &mut self,
        name: &str,
    ) -> Result<ReplyBody, WireError> {
        self.home.drop_namespace(name).map_err(store_error)?;
        self.replicas.publish_rules(&self.rules, &self.home);
        Ok(ReplyBody::Done)
    }

    /// All namespaces, with the objects that are registered or spilled.
    pub(crate) fn namespace_reports(&self) -> Vec<NamespaceReport> {
        let report = |one: &Namespace| {
            let NamespaceOptions { name, bytes_max, objects_max, writers } = one.options.clone();
            let used = self.home.usage_of_namespace(one.id);
            NamespaceReport {
                name,
                bytes: used.bytes.0,
                bytes_max,
                objects: (used.objects + self.home.spilled_of_namespace(one.id)).into(),
                objects_max: objects_max.map(u64::from),
                writers,
                clients: self.home.clients_in(one.id).count() as u64,
            }
        };
        self.home.namespaces().map(report).collect()
    }
}
