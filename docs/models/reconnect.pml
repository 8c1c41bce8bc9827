/* pan: -m1000 */
/* check: two-faults -O1 -DFAULTS=2 */
/* check: heals -DFAULTS=2 -DTRIES=3 -DPATIENT */
/* check: slow-messages -DFAULTS=1 -DSLOW */
/* check: open -DFAULTS=1 -DOPENING */
/* cycles: every-attempt-ends -DFAULTS=1 */
/* full check: two-faults-slow-messages -O1 -DFAULTS=2 -DSLOW */
/* full check: two-faults-open -O1 -DFAULTS=2 -DOPENING */
/* full cycles: two-faults-every-attempt-ends -O1 -DFAULTS=2 */
/* mutant: epoch-check -DMUTATE_EPOCH_CHECK -DTRIES=3 -DPATIENT */
/* mutant: early-commit -DMUTATE_EARLY_COMMIT -DTRIES=3 -DPATIENT */
/* mutant: own-deadline -DMUTATE_OWN_DEADLINE */
/* mutant: forget -DMUTATE_FORGET -DTRIES=3 -DPATIENT */
/* mutant: stale -DMUTATE_STALE -DTRIES=3 -DPATIENT */
/* mutant: stamp -DMUTATE_STAMP -DTRIES=3 -DPATIENT */
/*
 * Epoch and reconnect for three ranks: attempt_reconnect of survivors and open of replacements, with deaths, stopped
 * processes that wake, broken connections and set-ups that fail. README.md beside this file explains the steps R1 to R13,
 * the properties P1 to P8, what is left out and why that is sound, and the mutants. The lines above are for
 * scripts/models.sh.
 */
#ifndef FAULTS
#define FAULTS 2 /* kills, stops, broken connections and failing set-ups, together */
#endif
#ifndef TRIES
#define TRIES 2 /* attempts of each process */
#endif
#ifdef PATIENT
#define DEADLINE timeout /* a limit passes only when nothing else can happen */
#else
#define DEADLINE true /* a limit may pass at any time: whoever comes may come too late */
#endif
#if defined(PATIENT) || defined(OPENING)
#define ANSWERS(h) ((h) == (stat[3] == UNBORN -> 0 : 3)) /* the newest rank 0 answers at the master address */
#else
#define ANSWERS(h) true /* an older one may answer too: the name has moved and somebody remembers the old address */
#endif

/* Processes 0, 1, 2 are the first ones of ranks 0, 1, 2; processes 3, 4, 5 their replacements. A place is a rank. */
#define PLACE(p) ((p) % 3)
#define NONE 6 /* no process; not connected */
#define TORN 7 /* at a place: whoever held it has hung up, and the hub has not noticed yet */

/* An epoch is one byte: its number; which attempt of its hub made it, which stands for the stamp; and for each place
 * whether the replacement holds it. The wire carries the number and a random stamp. */
#define NUM(e) ((e) >> 5)
#define MEMBER(e, t) (((e) >> (t)) & 1 -> (t) + 3 : (t))
#ifdef MUTATE_STAMP
#define SAME(a, b) (NUM(a) == NUM(b))
#else
#define SAME(a, b) ((a) == (b))
#endif
#ifdef OPENING
#define FIRST 0 /* nobody has lived yet: all open */
#else
#define FIRST 32 /* number 1 of the first three processes */
#endif

#define UNBORN 0 /* stat */
#define ALIVE 1
#define STOPPED 2
#define DEAD 3

#define IN 1         /* phase: in the epoch lived[]; poisoned once that is not whole */
#define ASKING 2     /* its attempt runs or will begin: a worker dials, rank 0 gathers claims */
#define OUT 3        /* refused for good */
#define SEATED 4     /* worker: its claim holds the place */
#define PREPARING 5  /* worker: has the WELCOME and sets up */
#define PREPARED 6   /* worker: has said READY */
#define WELCOMING 7  /* rank 0: WELCOME is sent to rank 1, not yet to rank 2 */
#define COLLECTING 8 /* rank 0: waits for READY */
#define COMMITTING 9 /* rank 0: COMMIT is sent to rank 1, not yet to rank 2 */

mtype = { WELCOME, COMMIT, FAIL } /* mail; 0 is none */

byte stat[8], phase[8], tries[6];
byte lived[8];                /* the last epoch that it entered; 0: none, it opens */
byte seen[8];                 /* the last epoch that it was welcomed to, entered or not */
byte conn[8];                 /* worker: the rank 0 process that it is connected to */
byte mail[6], offer[6];       /* worker: unread message, and the epoch in an unread WELCOME */
byte seat[6];                 /* seat[h + t]: who holds place t at the rank 0 process h */
byte ready[6];                /* ready[h + t]: what READY from there has said: 1 set up, 2 not */
bit done[6];                  /* the one exchange of data in its present epoch is complete */
byte faults = FAULTS;
bit asks = 1;                 /* one rank that feels healthy may ask for a new epoch */
byte hit[2];                  /* epochs of which a fault struck a member, from its WELCOME on */
byte epoch_of[8], highest = NUM(FIRST); /* the epoch entered under each number; the highest of these */

/* ---- What an epoch is, and what is checked about it ---- */

#define AGREEING(p) (phase[p] >= PREPARING)
#define WITH(p, e) (stat[p] == ALIVE && ((phase[p] == IN && lived[p] == (e)) || (AGREEING(p) && seen[p] == (e))))
#define WHOLE(e) (WITH(MEMBER(e, 0), e) && WITH(MEMBER(e, 1), e) && WITH(MEMBER(e, 2), e))
#define GONE(p, e) (seen[p] == (e) && lived[p] != (e) && !AGREEING(p)) /* its attempt at e has failed */
#define SOME_GONE(e) (GONE(MEMBER(e, 0), e) || GONE(MEMBER(e, 1), e) || GONE(MEMBER(e, 2), e))
#define SOME_IN(e) (lived[MEMBER(e, 0)] == (e) || lived[MEMBER(e, 1)] == (e) || lived[MEMBER(e, 2)] == (e))
#define HIT(e) (hit[0] == (e) || hit[1] == (e))
#define MAX(a, b) ((a) > (b) -> (a) : (b))
#define NEWER(a, b) (NUM(a) >= NUM(b) -> (a) : (b))

/* R1, R2: a member of an epoch that is no longer whole is poisoned, and will attempt. */
#define ASKS(p) (stat[p] == ALIVE && tries[p] < TRIES && (phase[p] == ASKING || (phase[p] == IN && !WHOLE(lived[p]))))

inline enter(p) { /* R9 */
    assert(MEMBER(seen[p], PLACE(p)) == p && NUM(seen[p]) > NUM(lived[p])); /* P4, P5 */
#ifndef OPENING
    assert(epoch_of[NUM(seen[p])] == 0 || epoch_of[NUM(seen[p])] == seen[p]); /* P5 */
    epoch_of[NUM(seen[p])] = seen[p]; highest = MAX(highest, NUM(seen[p]));
#endif
    lived[p] = seen[p]; phase[p] = IN; tries[p]++; done[p] = 0;
    assert(!SOME_GONE(lived[p]) || HIT(lived[p])) /* P1 */
}
inline fail(p) { /* R10 */
    assert(!AGREEING(p) || !SOME_IN(seen[p]) || HIT(seen[p])); /* P1 */
    phase[p] = ASKING; tries[p]++
}

/* R13: data that anybody ever sent in its last epoch, dead or alive, may arrive at any time. */
#ifdef MUTATE_EPOCH_CHECK
#define ACCEPTS(p, q) (lived[q] != 0)
#else
#define ACCEPTS(p, q) SAME(lived[q], lived[p])
#endif
#define COMES(p, t) (ACCEPTS(p, t) || ACCEPTS(p, (t) + 3))
#define EXCHANGES(p) (stat[p] == ALIVE && phase[p] == IN && !done[p] && COMES(p, (p + 1) % 3) && COMES(p, (p + 2) % 3))
#define TAKES(p, q) assert(!ACCEPTS(p, q) || lived[q] == lived[p]) /* P7 */
inline exchange(p) {
    TAKES(p, (p + 1) % 6); TAKES(p, (p + 2) % 6); TAKES(p, (p + 4) % 6); TAKES(p, (p + 5) % 6);
    done[p] = 1
}

/* ---- Connections ---- */

inline unseat(h, t) { seat[h + t] = NONE; ready[h + t] = 0 }
inline hang_up(p) { /* worker p's end is closed: R5 while rank 0 gathers, later the seat is torn */
    if
    :: conn[p] != NONE && seat[conn[p] + PLACE(p)] == p && phase[conn[p]] <= ASKING -> unseat(conn[p], PLACE(p))
    :: conn[p] != NONE && seat[conn[p] + PLACE(p)] == p && phase[conn[p]] > ASKING -> seat[conn[p] + PLACE(p)] = TORN
    :: else
    fi;
    conn[p] = NONE
}
inline shut(h) { /* rank 0 process h closes its listener and all connections */
    conn[seat[h + 1]] = NONE; conn[seat[h + 2]] = NONE; unseat(h, 1); unseat(h, 2);
    phase[h] = OUT
}
inline take(p) { /* worker p reads what it was sent */
    if
    :: mail[p] == WELCOME -> seen[p] = offer[p]; offer[p] = 0; phase[p] = PREPARING /* R7 */
    :: mail[p] == COMMIT -> assert(phase[p] == PREPARED); /* P3 */ conn[p] = NONE; enter(p)
    :: mail[p] == FAIL ->
        if :: offer[p] != 0 -> seen[p] = offer[p]; offer[p] = 0 :: else fi;
        fail(p)
    :: else
    fi;
    mail[p] = 0
}
inline tell(h, t, message) { /* to whoever holds place t, on the connection that claimed it; lost if that is closed */
    w = seat[h + t];
    if
    :: conn[w] == h ->
        mail[w] = message;
        if :: message == WELCOME -> offer[w] = seen[h] :: message == FAIL -> conn[w] = NONE :: else fi;
#ifndef SLOW
        if :: stat[w] == ALIVE -> take(w) :: else fi
#endif
    :: else
    fi;
    if :: message != WELCOME -> unseat(h, t) :: else fi;
    w = 0
}

/* ---- Rank 0 ---- */

#ifdef MUTATE_FORGET
#define STATES(p) (lived[p])
#else
#define STATES(p) (lived[p] == 0 -> 0 : seen[p])
#endif
/* p was in an epoch, and another process held its place in a newer one */
#ifdef MUTATE_STALE
#define STALE(p, newest) false
#else
#define STALE(p, newest) (STATES(p) != 0 && !SAME(STATES(p), newest) && NUM(STATES(p)) <= NUM(newest))
#endif
/* R3: h reads w's hello. A fresh claim on a held place dials on, so nothing happens; a stale one is told at any time. */
#define HEARS(h, w) (stat[h] == ALIVE && ANSWERS(h) && ASKS(w) && ( \
    (ASKS(h) && !(STATES(w) == 0 && seat[(h) + PLACE(w)] != NONE)) || (phase[h] <= ASKING && STALE(w, lived[h]))))

inline dismiss(h, t) { /* the claim there loses: a fresh one dials again, another is refused for good */
    w = seat[h + t];
    if
    :: stat[w] == ALIVE -> phase[w] = (STATES(w) == 0 -> ASKING : OUT)
    :: else /* stopped: finds the connection closed when it wakes (R12), and asks again */
    fi;
    conn[w] = NONE; unseat(h, t); w = 0
}
#define DISMISS_STALE(h, t) if :: STALE(seat[h + t], newest) -> \
    assert(MEMBER(newest, t) != seat[h + t]); /* P6 */ dismiss(h, t) :: else fi
inline judge(h, c) { /* R4 */
    newest = NEWER(NEWER(lived[h], lived[c]), NEWER(lived[seat[h + 1]], lived[seat[h + 2]]));
    if
    :: !ASKS(h) || STALE(c, newest) -> assert(MEMBER(newest, PLACE(c)) != c); /* P6 */ phase[c] = OUT
    :: ASKS(h) && !STALE(c, newest) && STALE(h, newest) -> assert(MEMBER(newest, 0) != h); /* P6 */ shut(h)
    :: else ->
        DISMISS_STALE(h, 1); DISMISS_STALE(h, 2);
        if
        :: seat[h + PLACE(c)] != NONE && NUM(STATES(seat[h + PLACE(c)])) >= NUM(STATES(c)) -> phase[c] = OUT
        :: else ->
            if :: seat[h + PLACE(c)] != NONE -> dismiss(h, PLACE(c)) :: else fi;
            seat[h + PLACE(c)] = c; conn[c] = h; phase[c] = SEATED; phase[h] = ASKING
        fi
    fi;
    newest = 0
}
#define RIGHTFUL(p, t) (lived[p] == 0 || MEMBER(newest, t) == p || NUM(seen[p]) > NUM(newest))
inline propose(h) { /* R6 */
    newest = NEWER(lived[h], NEWER(lived[seat[h + 1]], lived[seat[h + 2]]));
    assert(RIGHTFUL(h, 0) && RIGHTFUL(seat[h + 1], 1) && RIGHTFUL(seat[h + 2], 2)); /* P6 */
    newest = 1 + MAX(NUM(STATES(h)), MAX(NUM(STATES(seat[h + 1])), NUM(STATES(seat[h + 2]))));
    seen[h] = (newest << 5) + (tries[h] << 3) + (seat[h + 2] / 3 << 2) + (seat[h + 1] / 3 << 1) + h / 3;
    phase[h] = WELCOMING; newest = 0
}
inline give_up(h) { /* R8, R11: one word for all that are there */
    tell(h, 1, FAIL); tell(h, 2, FAIL); fail(h)
}
#define HUB(f) (stat[h] == ALIVE && phase[h] == f)
#define BROKEN(h, t) (seat[h + t] == TORN || (seat[h + t] != NONE && stat[seat[h + t]] != ALIVE))
#ifdef MUTATE_EARLY_COMMIT
#define ALL_READY(h) (ready[h + 1] == 1 || ready[h + 2] == 1)
#else
#define ALL_READY(h) (ready[h + 1] == 1 && ready[h + 2] == 1)
#endif

proctype rank_0(byte h) {
    byte newest, w;
end:
    do
    /* R2: its address is another's now */
    :: d_step { h == 0 && ASKS(h) && stat[3] != UNBORN -> shut(h) }
    /* R3, R4 */
    :: d_step { HEARS(h, 1) -> judge(h, 1) }
    :: d_step { HEARS(h, 2) -> judge(h, 2) }
    :: d_step { HEARS(h, 4) -> judge(h, 4) }
    :: d_step { HEARS(h, 5) -> judge(h, 5) }
    /* R5: a silent claimant gives its place up */
    :: d_step { HUB(ASKING) && BROKEN(h, 1) -> conn[seat[h + 1]] = NONE; unseat(h, 1) }
    :: d_step { HUB(ASKING) && BROKEN(h, 2) -> conn[seat[h + 2]] = NONE; unseat(h, 2) }
    /* R6: all places are held */
    :: d_step { HUB(ASKING) && seat[h + 1] != NONE && seat[h + 2] != NONE -> propose(h); tell(h, 1, WELCOME) }
    :: d_step { HUB(WELCOMING) -> phase[h] = COLLECTING; tell(h, 2, WELCOME) }
    /* R8: the decision */
    :: d_step { HUB(COLLECTING) && ALL_READY(h) ->
#ifndef OPENING
        assert(BROKEN(h, 1) || BROKEN(h, 2) || NUM(seen[h]) > highest); /* P4 */
#endif
        phase[h] = COMMITTING; tell(h, 1, COMMIT) }
    :: d_step { HUB(COMMITTING) -> tell(h, 2, COMMIT); enter(h) }
    :: d_step { HUB(COLLECTING) && (BROKEN(h, 1) || BROKEN(h, 2) || ready[h + 1] == 2 || ready[h + 2] == 2) -> give_up(h) }
    :: d_step { HUB(COLLECTING) && DEADLINE -> give_up(h) } /* its own set-up has failed, or takes too long */
    /* R11: somebody is missing at the hub's limit, or a seated worker has said GIVE_UP at its own */
    :: d_step { ASKS(h) && DEADLINE -> give_up(h) }
    :: d_step { EXCHANGES(h) -> exchange(h) }
    od
}

/* ---- The other ranks ---- */

#define WORKER(f) (stat[p] == ALIVE && phase[p] == f)

proctype worker(byte p) {
end:
    do
    :: d_step { stat[p] == ALIVE && mail[p] != 0 -> take(p) }
    /* R7: the set-up, and READY */
    :: d_step { WORKER(PREPARING) && conn[p] != NONE -> phase[p] = PREPARED; ready[conn[p] + PLACE(p)] = 1 }
    :: d_step { WORKER(PREPARING) && conn[p] != NONE && faults > 0 ->
        faults--; phase[p] = PREPARED; ready[conn[p] + PLACE(p)] = 2 }
    /* R11: no hub has taken its claim by its limit */
    :: d_step { ASKS(p) && DEADLINE -> fail(p) }
    /* R12: the hub is lost; P2 */
    :: d_step { (WORKER(SEATED) || WORKER(PREPARING) || WORKER(PREPARED)) && mail[p] == 0 &&
        (conn[p] == NONE || stat[conn[p]] != ALIVE) ->
        assert(phase[p] == SEATED || HIT(seen[p]));
        hang_up(p);
        if :: phase[p] == SEATED -> phase[p] = ASKING :: else -> fail(p) fi }
#ifdef MUTATE_OWN_DEADLINE
    :: d_step { WORKER(PREPARED) && mail[p] == 0 && DEADLINE -> hang_up(p); fail(p) }
#endif
    :: d_step { EXCHANGES(p) -> exchange(p) }
    od
}

/* ---- Faults, and what else comes from outside ---- */

#define CURRENT(p) (AGREEING(p) -> seen[p] : (phase[p] == IN -> lived[p] : FIRST))
inline hurt(p) {
    if :: CURRENT(p) != FIRST -> hit[(hit[0] == 0 -> 0 : 1)] = CURRENT(p) :: else fi;
    faults--
}
inline replace(p) { /* a replacement that dials late is one that starts late; rank 0's starts in outside() */
    if :: (p == 1 || p == 2) && stat[p + 3] == UNBORN -> stat[p + 3] = ALIVE; phase[p + 3] = ASKING :: else fi
}
inline disconnect(p) { hang_up(p); mail[p] = 0; offer[p] = 0 }
inline kill(p) {
    if :: PLACE(p) == 0 -> shut(p) :: else -> disconnect(p) fi;
    stat[p] = DEAD; phase[p] = 0; tries[p] = 0; seen[p] = 0
}
#define KILL(p) faults > 0 && stat[p] == ALIVE -> hurt(p); kill(p); replace(p)
#define STOP(p) faults > 0 && stat[p] == ALIVE -> hurt(p); stat[p] = STOPPED; replace(p)
#define CUT(p) faults > 0 && stat[p] == ALIVE && PLACE(p) != 0 && conn[p] != NONE -> hurt(p); disconnect(p)
#define WAKE(p) stat[p] == STOPPED -> stat[p] = ALIVE; take(p)
#define ASK(p) asks && stat[p] == ALIVE && phase[p] == IN -> asks = 0; phase[p] = ASKING
#define ANY(step) :: d_step { step(0) } :: d_step { step(1) } :: d_step { step(2) } \
    :: d_step { step(3) } :: d_step { step(4) } :: d_step { step(5) }

proctype outside() {
end:
    do
    ANY(KILL) ANY(STOP) ANY(CUT) ANY(WAKE) ANY(ASK)
    :: d_step { stat[0] > ALIVE && stat[3] == UNBORN -> stat[3] = ALIVE; phase[3] = ASKING }
#ifdef PATIENT
    :: d_step { faults > 0 -> faults = 0 } /* or else the limits would wait for the last fault */
#endif
    od
}

/* P8: when nothing can happen any more, every attempt has ended; and, where the limits are long, all ranks are well. */
#define SETTLED(p) (stat[p] != ALIVE || (phase[p] <= OUT && !ASKS(p)))
#define USABLE(p) (stat[p] == ALIVE && phase[p] != OUT)
#define WELL(p) (stat[p] == ALIVE && phase[p] == IN && WHOLE(lived[p]) && done[p])
#define EACH(test) ((test(0) || test(3)) && (test(1) || test(4)) && (test(2) || test(5)))
active proctype at_the_end() {
    timeout && SETTLED(0) && SETTLED(1) && SETTLED(2) && SETTLED(3) && SETTLED(4) && SETTLED(5);
#ifdef PATIENT
    assert(EACH(WELL) || !EACH(USABLE))
#endif
}

init {
    byte p;
    d_step {
        conn[NONE] = NONE; conn[TORN] = NONE; epoch_of[NUM(FIRST)] = FIRST;
        for (p : 0 .. 5) {
            conn[p] = NONE; seat[p] = NONE;
            if
            :: p < 3 -> stat[p] = ALIVE; lived[p] = FIRST; seen[p] = FIRST; done[p] = 1; phase[p] = (FIRST -> IN : ASKING)
            :: else
            fi
        }
        p = 0
    }
    atomic { run rank_0(0); run rank_0(3); run worker(1); run worker(2); run worker(4); run worker(5); run outside() }
}
