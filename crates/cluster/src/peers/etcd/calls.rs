//! The calls to etcd, in terms of membership.

use farrow_membership::etcd::{
    Change, EtcdReply, EtcdRequest, EtcdSnapshot, FoundKey, LeaseId, Revision,
};
use futures_util::stream;
use tonic::Status;

use super::channel::OpenChannel;
use super::keys::Keys;
use crate::peers::generated::etcd_pb::compare::TargetUnion;
use crate::peers::generated::etcd_pb::kv_client::KvClient;
use crate::peers::generated::etcd_pb::lease_client::LeaseClient;
use crate::peers::generated::etcd_pb::request_op::Request as Op;
use crate::peers::generated::etcd_pb::response_op::Response as Done;
use crate::peers::generated::etcd_pb::{
    Compare, DeleteRangeRequest, KeyValue, LeaseGrantRequest, LeaseKeepAliveRequest, PutRequest,
    RangeRequest, RequestOp, TxnRequest, TxnResponse,
};

/// Limit on keys below a prefix: two of each member, and those of waiting or former ones.
const KEYS_MAX: i64 = 4096;

/// `EQUAL` and `MOD` of etcd's messages.
const EQUAL: i32 = 0;
const MOD: i32 = 2;

pub(super) async fn call(
    to: &OpenChannel,
    keys: &Keys,
    request: EtcdRequest,
) -> Result<EtcdReply, Status> {
    match request {
        EtcdRequest::Look { since } => look(to, keys, since).await,
        EtcdRequest::Change(change) => change_all(to, keys, change).await,
        EtcdRequest::Grant { ttl_s } => {
            let ttl = i64::try_from(ttl_s).unwrap_or(i64::MAX);
            let mut client = LeaseClient::with_origin(to.live.clone(), to.origin.clone());
            let granted = client.lease_grant(to.request(LeaseGrantRequest { ttl })).await?;
            let granted = granted.into_inner();
            match granted.error.is_empty() {
                true => Ok(EtcdReply::Granted { lease: LeaseId(granted.id) }),
                false => Err(Status::failed_precondition(granted.error)),
            }
        }
        EtcdRequest::KeepAlive { lease } => {
            let once = LeaseKeepAliveRequest { id: lease.0 };
            let once = stream::once(async move { once });
            let mut client = LeaseClient::with_origin(to.live.clone(), to.origin.clone());
            let mut answers = client.lease_keep_alive(to.request(once)).await?.into_inner();
            let answer = answers.message().await?;
            let answer = answer.ok_or_else(|| Status::unavailable("no answer"))?;
            Ok(EtcdReply::RetainedAlive { is_there: answer.ttl > 0 })
        }
    }
}

/// Reads both ranges in one transaction, so at one revision. Since it writes nothing, a quorum
/// confirms the read.
async fn look(to: &OpenChannel, keys: &Keys, since: Revision) -> Result<EtcdReply, Status> {
    let (key, range_end) = keys.range();
    let limit = KEYS_MAX;
    let listed = RangeRequest { key, range_end, limit, keys_only: true, min_mod_revision: 0 };
    let changed = RangeRequest { keys_only: false, min_mod_revision: since.0, ..listed.clone() };
    let success = [listed, changed].map(|range| op(Op::RequestRange(range))).into();
    let request = TxnRequest { compare: Vec::new(), success };
    let mut client = KvClient::with_origin(to.live.clone(), to.origin.clone());
    let TxnResponse { header, responses, .. } = client.txn(to.request(request)).await?.into_inner();
    let mut ranges = responses.into_iter().map(|one| match one.response {
        Some(Done::ResponseRange(range)) => Some(range),
        _ => None,
    });
    let (Some(header), Some(Some(listed)), Some(Some(changed))) =
        (header, ranges.next(), ranges.next())
    else {
        return Err(Status::internal("an answer to another question"));
    };
    if listed.more || changed.more {
        let text = format!("more than {KEYS_MAX} keys lie there");
        return Err(Status::failed_precondition(text));
    }
    let name = |one: &KeyValue| Some((keys.read(&one.key)?, Revision(one.mod_revision)));
    let found = |one: KeyValue| {
        let (key, revision) = name(&one)?;
        let lease = (one.lease != 0).then_some(LeaseId(one.lease));
        Some(FoundKey { key, revision, lease, value: one.value })
    };
    Ok(EtcdReply::Looked(EtcdSnapshot {
        revision: Revision(header.revision),
        keys: listed.kvs.iter().filter_map(name).collect(),
        changed: changed.kvs.into_iter().filter_map(found).collect(),
    }))
}

async fn change_all(to: &OpenChannel, keys: &Keys, change: Change) -> Result<EtcdReply, Status> {
    let compare = change.expected.iter().map(|(key, revision)| Compare {
        result: EQUAL,
        target: MOD,
        key: keys.write(key),
        target_union: Some(TargetUnion::ModRevision(revision.0)),
    });
    let puts = change.puts.into_iter().map(|put| {
        let lease = put.lease.map_or(0, |lease| lease.0);
        op(Op::RequestPut(PutRequest { key: keys.write(&put.key), value: put.value, lease }))
    });
    let deletes = change
        .deletes
        .iter()
        .map(|key| op(Op::RequestDeleteRange(DeleteRangeRequest { key: keys.write(key) })));
    let request = TxnRequest { compare: compare.collect(), success: puts.chain(deletes).collect() };
    let mut client = KvClient::with_origin(to.live.clone(), to.origin.clone());
    let done = client.txn(to.request(request)).await?.into_inner();
    Ok(EtcdReply::Changed { is_done: done.succeeded })
}

fn op(request: Op) -> RequestOp {
    RequestOp { request: Some(request) }
}
