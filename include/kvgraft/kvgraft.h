/* SPDX-License-Identifier: Apache-2.0
 * SPDX-FileCopyrightText: The kvgraft authors */

/* kvgraft.h -- all of the library. */
#ifndef KVGRAFT_KVGRAFT_H
#define KVGRAFT_KVGRAFT_H

#include <kvgraft/base.h>
#include <kvgraft/page.h>
#include <kvgraft/layout.h>
#include <kvgraft/event.h>
#include <kvgraft/kvcap.h>
#include <kvgraft/presence.h>
#include <kvgraft/source.h>
#include <kvgraft/workers.h>
#include <kvgraft/slots.h>
#include <kvgraft/tree.h>
#include <kvgraft/tree_storage.h>
#include <kvgraft/tree_survey.h>
#include <kvgraft/graft.h>
#include <kvgraft/store.h>
#include <kvgraft/store_backend.h>
#include <kvgraft/transport.h>
#include <kvgraft/dynamo.h>

#endif
