"""Every Redis key we own, and the story of the data.

A session lives in one shard; all its keys carry the shard as their hash tag, so one script may touch them together.

orc:{s}:own:<id>       hash    what must be looked at by scripts: life, owner, position, counters; values of at most 64 bytes
orc:{s}:now:<id>       string  the snapshot: all that is needed to go on
orc:{s}:inbox:<id>     zset    delivery id -> admission number; stays until the commit that uses or drops it
orc:{s}:box:<id>       hash    delivery id -> at_seq and head; 'b:' + delivery id -> body
orc:{s}:seen:<id>      zset    delivery id -> four times the ms it came in, plus its first answer; trimmed to 24 h. `<delivery>:<digest>`
                               beside it says what came under a caller's own key
orc:{s}:blob:<id>:<b>  string  the bytes of a file, written before the delivery that brings it and kept by it; as it was fetched, for a URL
orc:{s}:blobs:<id>     zset    blob -> the generation of the history that speaks of it; inf while its delivery waits
orc:{s}:who:<id>       set     who takes part: hashes of principals
orc:{s}:fact:<id>      list    facts of the last 16 turns; place = seq - fact_base
orc:{s}:evt:<id>       list    public events, each the line a reader gets; place = index, dense for ever
orc:{s}:hist:<id>:<g>  list    history rows of generation g, append-only
orc:{s}:rec:<id>       hash    call id -> recorded result, until it is folded into a history row; what is kept for a turn until it ends
orc:{s}:state:<id>     hash    authored state
orc:{s}:req:<id>       hash    request id -> what was asked, of which call, who answered, when and what; for the session's life
orc:{s}:link:<hash>    hash    a link to one open request, under the hash of its token: session, request, owner (who has used it: HSETNX)
orc:{s}:out:<id>       list    the outbox: what is to be done elsewhere; place = number - out_base
orc:{s}:adrs:<id>      hash    address key -> its state, kind, channel and text, also of addresses it had: their doors may name the session
orc:{s}:adr:<key>      string  an address: the session it leads to, in whichever shard. A pointer; the session's life is the truth
orc:{s}:adm:<key>      hash    the door of an address (or of a channel): admission key -> its first answer, for 24 h; `~` and the hash of a
                               session's id -> the number of the last take or drop by it
orc:{s}:adms           zset    door:admission key -> ms it came in, by which they are forgotten
orc:{s}:erased         zset    hash of an id that was erased -> ms, for 24 h: a creation that runs late brings nothing back
orc:{s}:due            zset    session -> ms when a worker must look at it
orc:{s}:tidy           zset    session -> ms when the keeper itself has something to put in order
orc:{s}:index          zset    session -> ms of its last activity
orc:world              hash    protocol and shards, written at the first start
orc:wakes              hash    queue -> number of the last wake
orc:dep                hash    deployment label -> rank, reads, digest
orc:workers            hash    label|worker -> last beat, reads, digest

A session that an address starts lives in the address's shard. Its further addresses may live elsewhere. No key has a time to live, so an
eviction policy that looks for one finds nothing, but a blob that no delivery has kept yet: it goes after ten minutes.
Channels: orc:{s}:tail says "<id> <events>" after every write to a stream, orc:{s}:news "<id> <n> <kind>" to a session's owner.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from orchestrator.ids import shard_of


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one session."""

    session: str
    own: str
    snapshot: str
    inbox: str
    box: str
    seen: str
    fact: str
    evt: str
    rec: str
    state: str
    who: str
    req: str
    blobs: str
    out: str
    adrs: str
    due: str
    tidy: str
    index: str
    tail: str
    news: str
    adms: str
    erased: str
    base: str

    def hist(self, gen: int) -> str:
        """The history of a generation."""
        return f"{self.base}hist:{self.session}:{gen}"

    def blob(self, name: str) -> str:
        """The bytes of a file."""
        return f"{self.base}blob:{self.session}:{name}"

    def address(self, key: str) -> str:
        """An address that lives in the session's shard."""
        return f"{self.base}adr:{key}"


@lru_cache(maxsize=4096)
def keys(prefix: str, session: str) -> Keys:
    """The keys of `session`."""
    base = f"{prefix}:{{{shard_of(session)}}}:"

    def of(name: str) -> str:
        return f"{base}{name}:{session}"

    return Keys(
        session=session,
        own=of("own"),
        snapshot=of("now"),
        inbox=of("inbox"),
        box=of("box"),
        seen=of("seen"),
        fact=of("fact"),
        evt=of("evt"),
        rec=of("rec"),
        state=of("state"),
        who=of("who"),
        req=of("req"),
        blobs=of("blobs"),
        out=of("out"),
        adrs=of("adrs"),
        due=base + "due",
        tidy=base + "tidy",
        index=base + "index",
        tail=base + "tail",
        news=base + "news",
        adms=base + "adms",
        erased=base + "erased",
        base=base,
    )


@dataclass(frozen=True, slots=True)
class Door:
    """An address, or a channel as a whole: where it leads, and the keys that have come to it."""

    key: str
    shard: str
    address: str
    admissions: str
    by_age: str
    base: str


def door(prefix: str, key: str, shard: str) -> Door:
    """The keys of a door."""
    base = f"{prefix}:{{{shard}}}:"
    return Door(key, shard, f"{base}adr:{key}", f"{base}adm:{key}", base + "adms", base)


def shard_key(prefix: str, shard: str, name: str) -> str:
    """A key or channel of a shard: due, tidy, index, tail, news."""
    return f"{prefix}:{{{shard}}}:{name}"
