/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* redis_scripts.c -- what must happen in one step, as scripts that the server runs.
 *
 * Keys of the server, P being the store's prefix:
 *
 *     P meta      hash    version, fingerprint, text, epoch, sequence, objects, bytes, clock
 *     P o:KEY     string  a value
 *     P info      hash    key -> its bytes, group id, group
 *     P order     zset    key by the sequence of the change that stored it: for listing
 *     P m:GROUP   set     keys of a group; a group is named by its first key
 *     P recent    zset    group by its last use: for eviction
 *     P parent    hash    group -> group of the page before
 *     P k:GROUP   set     groups that follow it
 *     P changes   stream  every change, its id being its sequence
 *
 * A script is atomic, so a group appears as a whole, and a change is told where it happens.
 *
 * Invariants, between scripts:
 *   1. A key is in info if and only if it is in order and in the set of its group; its value
 *      exists, unless the server dropped it by itself (found, and told as lost, when asked for).
 *   2. A group is in recent if and only if it has keys.
 *   3. meta's objects and bytes count what info has.
 *   4. What eviction takes is followed by no other group, and is not the one being put or one that
 *      leads to it.
 *
 * ARGV begins with P and the length to which the stream is trimmed. */
#include "backend/redis_scripts.h"

#define COMMON                                                                 \
    "local P,KEEP=ARGV[1],ARGV[2]\n"                                           \
    "local call=redis.call\n"                                                  \
    "local M,INFO,RECENT=P..'meta',P..'info',P..'recent'\n"                    \
    "local function info_of(key)\n"                                            \
    "  local packed=call('HGET',INFO,key)\n"                                   \
    "  if packed then return cmsgpack.unpack(packed) end\n"                    \
    "end\n"                                                                    \
    "local function tell(kind,key,bytes,id)\n"                                 \
    "  local sequence=call('HINCRBY',M,'sequence',1)\n"                        \
    "  call('XADD',P..'changes','MAXLEN','~',KEEP,sequence..'-0',\n"           \
    "    'k',kind,'o',key,'b',bytes,'g',id)\n"                                 \
    "  return sequence\n"                                                      \
    "end\n"                                                                    \
    "local function forget_group(group)\n"                                     \
    "  local parent=call('HGET',P..'parent',group)\n"                          \
    "  if parent then\n"                                                       \
    "    call('SREM',P..'k:'..parent,group)\n"                                 \
    "    call('HDEL',P..'parent',group)\n"                                     \
    "  end\n"                                                                  \
    "  call('ZREM',RECENT,group)\n"                                            \
    "end\n"                                                                    \
    "local function drop(key,kind)\n"                                          \
    "  local info=info_of(key)\n"                                              \
    "  local gone=call('UNLINK',P..'o:'..key)\n"                               \
    "  if not info then return gone end\n"                                     \
    "  call('HDEL',INFO,key)\n"                                                \
    "  call('ZREM',P..'order',key)\n"                                          \
    "  call('HINCRBY',M,'objects',-1)\n"                                       \
    "  call('HINCRBY',M,'bytes',-info[1])\n"                                   \
    "  tell(kind,key,info[1],info[2])\n"                                       \
    "  call('SREM',P..'m:'..info[3],key)\n"                                    \
    "  if call('EXISTS',P..'m:'..info[3])==0 then forget_group(info[3]) end\n" \
    "  return 1\n"                                                             \
    "end\n"                                                                    \
    "local function use(group)\n"                                              \
    "  call('ZADD',RECENT,'XX',call('HINCRBY',M,'clock',1),group)\n"           \
    "end\n"

/* version, fingerprint, its text, an epoch, read only? */
#define INIT                                                            \
    "local version=call('HGET',M,'version')\n"                          \
    "local write=ARGV[7]=='0'\n"                                        \
    "if not version then\n"                                             \
    "  if not write then return {'ok','0','0'} end\n"                   \
    "  call('HSET',M,'version',ARGV[3],'epoch',ARGV[6],'sequence',0,\n" \
    "    'objects',0,'bytes',0,'clock',0)\n"                            \
    "elseif tonumber(version)~=tonumber(ARGV[3]) then\n"                \
    "  return {'version',version}\n"                                    \
    "end\n"                                                             \
    "local mark=call('HGET',M,'fingerprint')\n"                         \
    "if ARGV[4]~='' then\n"                                             \
    "  if mark and mark~=ARGV[4] then\n"                                \
    "    return {'fingerprint',call('HGET',M,'text') or ''}\n"          \
    "  end\n"                                                           \
    "  if not mark and write then\n"                                    \
    "    call('HSET',M,'fingerprint',ARGV[4],'text',ARGV[5])\n"         \
    "  end\n"                                                           \
    "end\n"                                                             \
    "return {'ok',call('HGET',M,'epoch'),call('HGET',M,'sequence')}\n"

/* The group to evict for `group`: one that nothing follows.  Nothing, if `new` follows it. */
#define EVICT                                                              \
    "local evicted,evicted_bytes=0,0\n"                                    \
    "local function leaf(group,new)\n"                                     \
    "  for step=1,100000 do\n"                                             \
    "    if group==new then return nil end\n"                              \
    "    local blocked,after=false,nil\n"                                  \
    "    repeat\n"                                                         \
    "      local stale=false\n"                                            \
    "      blocked,after=false,nil\n"                                      \
    "      for _,kid in ipairs(call('SRANDMEMBER',P..'k:'..group,2)) do\n" \
    "        if kid==new then blocked=true\n"                              \
    "        elseif call('ZSCORE',RECENT,kid) then after=kid\n"            \
    "        else call('SREM',P..'k:'..group,kid) stale=true end\n"        \
    "      end\n"                                                          \
    "    until not stale or after\n"                                       \
    "    if after then group=after\n"                                      \
    "    elseif blocked then return nil\n"                                 \
    "    else return group end\n"                                          \
    "  end\n"                                                              \
    "  return group\n"                                                     \
    "end\n"                                                                \
    "local function evict_one(new)\n"                                      \
    "  local at=0\n"                                                       \
    "  while true do\n"                                                    \
    "    local coldest=call('ZRANGE',RECENT,at,at)[1]\n"                   \
    "    if not coldest then return false end\n"                           \
    "    local victim=leaf(coldest,new)\n"                                 \
    "    if victim then\n"                                                 \
    "      for _,key in ipairs(call('SMEMBERS',P..'m:'..victim)) do\n"     \
    "        evicted=evicted+1\n"                                          \
    "        evicted_bytes=evicted_bytes+info_of(key)[1]\n"                \
    "        drop(key,'E')\n"                                              \
    "      end\n"                                                          \
    "      return true\n"                                                  \
    "    end\n"                                                            \
    "    at=at+1\n"                                                        \
    "  end\n"                                                              \
    "end\n"

/* budget, group id, previous key, number of parts, then key and value of each; returns parts and
 * bytes written, and objects and bytes evicted for it */
#define PUT                                                                          \
    "local budget,id,previous=tonumber(ARGV[3]),ARGV[4],ARGV[5]\n"                   \
    "local missing,seen,need,group={},{},0,nil\n"                                    \
    "for part=0,tonumber(ARGV[6])-1 do\n"                                            \
    "  local key,value=ARGV[7+2*part],ARGV[8+2*part]\n"                              \
    "  if not seen[key] then\n"                                                      \
    "    seen[key]=true\n"                                                           \
    "    if call('EXISTS',P..'o:'..key)==0 then\n"                                   \
    "      drop(key,'L')\n"                                                          \
    "      missing[#missing+1]=part\n"                                               \
    "      need=need+#value\n"                                                       \
    "    else\n"                                                                     \
    "      local info=info_of(key)\n"                                                \
    "      group=group or (info and info[3])\n"                                      \
    "    end\n"                                                                      \
    "  end\n"                                                                        \
    "end\n"                                                                          \
    "if #missing==0 then\n"                                                          \
    "  if group then use(group) end\n"                                               \
    "  return {0,0,0,0}\n"                                                           \
    "end\n"                                                                          \
    "group=group or ARGV[7+2*missing[1]]\n"                                          \
    "local before=previous~='' and info_of(previous)\n"                              \
    "local linked=false\n"                                                           \
    "if before and before[3]~=group and call('HEXISTS',P..'parent',group)==0 then\n" \
    "  call('SADD',P..'k:'..before[3],group)\n"                                      \
    "  call('HSET',P..'parent',group,before[3])\n"                                   \
    "  linked=true\n"                                                                \
    "end\n"                                                                          \
    "local fits=budget==0 or need<=budget\n"                                         \
    "while fits and budget>0 and\n"                                                  \
    "    tonumber(call('HGET',M,'bytes'))+need>budget do\n"                          \
    "  fits=evict_one(group)\n"                                                      \
    "end\n"                                                                          \
    "if not fits then\n"                                                             \
    "  if linked then\n"                                                             \
    "    call('SREM',P..'k:'..before[3],group)\n"                                    \
    "    call('HDEL',P..'parent',group)\n"                                           \
    "  end\n"                                                                        \
    "  return redis.error_reply('FULL the budget holds nothing that could go')\n"    \
    "end\n"                                                                          \
    "for _,part in ipairs(missing) do\n"                                             \
    "  local key,value=ARGV[7+2*part],ARGV[8+2*part]\n"                              \
    "  call('SET',P..'o:'..key,value)\n"                                             \
    "  call('HSET',INFO,key,cmsgpack.pack({#value,id,group}))\n"                     \
    "  call('SADD',P..'m:'..group,key)\n"                                            \
    "  call('HINCRBY',M,'objects',1)\n"                                              \
    "  call('HINCRBY',M,'bytes',#value)\n"                                           \
    "  call('ZADD',P..'order',tell('S',key,#value,id),key)\n"                        \
    "end\n"                                                                          \
    "call('ZADD',RECENT,call('HINCRBY',M,'clock',1),group)\n"                        \
    "return {#missing,need,evicted,evicted_bytes}\n"

/* the kind of the change, then keys */
#define REMOVE                                                     \
    "local results={}\n"                                           \
    "for at=4,#ARGV do results[at-3]=drop(ARGV[at],ARGV[3]) end\n" \
    "return results\n"

/* keys that were read, in the order of the prompt: the first ends as the most recent */
#define TOUCH                                                              \
    "for at=#ARGV,3,-1 do\n"                                               \
    "  local info=info_of(ARGV[at])\n"                                     \
    "  if info then\n"                                                     \
    "    if call('EXISTS',P..'o:'..ARGV[at])==0 then drop(ARGV[at],'L')\n" \
    "    else use(info[3]) end\n"                                          \
    "  end\n"                                                              \
    "end\n"                                                                \
    "return 0\n"

/* a new epoch */
#define CLEAR                                                               \
    "local groups={}\n"                                                     \
    "for _,key in ipairs(call('ZRANGE',P..'order',0,-1)) do\n"              \
    "  local info=info_of(key)\n"                                           \
    "  call('UNLINK',P..'o:'..key)\n"                                       \
    "  if info then call('UNLINK',P..'m:'..info[3],P..'k:'..info[3]) end\n" \
    "end\n"                                                                 \
    "call('UNLINK',INFO,P..'order',RECENT,P..'parent',P..'changes')\n"      \
    "call('HSET',M,'epoch',ARGV[3],'sequence',0,'objects',0,'bytes',0)\n"   \
    "tell('C','',0,'')\n"                                                   \
    "return 0\n"

/* the sequence after which to begin, how many */
#define LIST                                                                         \
    "local found={}\n"                                                               \
    "local rows=call('ZRANGEBYSCORE',P..'order','('..ARGV[3],'+inf','WITHSCORES',\n" \
    "  'LIMIT',0,ARGV[4])\n"                                                         \
    "for at=1,#rows,2 do\n"                                                          \
    "  local info=info_of(rows[at])\n"                                               \
    "  if info then\n"                                                               \
    "    found[#found+1]={rows[at],tostring(info[1]),info[2],rows[at+1]}\n"          \
    "  end\n"                                                                        \
    "end\n"                                                                          \
    "local meta=call('HMGET',M,'epoch','sequence')\n"                                \
    "return {meta[1] or '0',meta[2] or '0',found}\n"

/* drop what is damaged?, then keys: those whose value is not what info says */
#define VERIFY                                                       \
    "local bad={}\n"                                                 \
    "for at=4,#ARGV do\n"                                            \
    "  local info=info_of(ARGV[at])\n"                               \
    "  if info and call('STRLEN',P..'o:'..ARGV[at])~=info[1] then\n" \
    "    bad[#bad+1]=ARGV[at]\n"                                     \
    "    if ARGV[3]=='1' then drop(ARGV[at],'L') end\n"              \
    "  end\n"                                                        \
    "end\n"                                                          \
    "return bad\n"

const char *const kvi_redis_scripts[KVI_REDIS_SCRIPT_COUNT] = {
    [KVI_REDIS_INIT] = COMMON INIT,
    [KVI_REDIS_PUT] = COMMON EVICT PUT,
    [KVI_REDIS_REMOVE] = COMMON REMOVE,
    [KVI_REDIS_TOUCH] = COMMON TOUCH,
    [KVI_REDIS_CLEAR] = COMMON CLEAR,
    [KVI_REDIS_LIST] = COMMON LIST,
    [KVI_REDIS_VERIFY] = COMMON VERIFY,
};
