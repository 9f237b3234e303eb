"""LLVM text of the native code that every frontend shares; native.py says what each function does."""

PARTS = """
%Env = type { ptr, i64, i64, ptr, ptr, [3 x i64] }

; body(ctx, part, part*n/T, (part+1)*n/T) for part = first, first+step, ... below stop
define internal void @parts(ptr %body, ptr %ctx, i64 %n, i64 %T, i64 %first, i64 %stop, i64 %step) {
entry:
  %some = icmp slt i64 %first, %stop
  br i1 %some, label %loop, label %done
loop:
  %part = phi i64 [ %first, %entry ], [ %next, %loop ]
  %up = add i64 %part, 1
  %a = mul i64 %part, %n
  %lo = udiv i64 %a, %T
  %b = mul i64 %up, %n
  %hi = udiv i64 %b, %T
  call void %body(ptr %ctx, i64 %part, i64 %lo, i64 %hi)
  %next = add i64 %part, %step
  %more = icmp slt i64 %next, %stop
  br i1 %more, label %loop, label %done
done:
  ret void
}

define internal i64 @part_count(ptr %env, i64 %n) {
  %at = getelementptr %Env, ptr %env, i32 0, i32 1
  %t0 = load i64, ptr %at
  %t1 = call i64 @llvm.smax.i64(i64 %t0, i64 1)
  %t2 = call i64 @llvm.smin.i64(i64 %t1, i64 %n)
  ret i64 %t2
}

define internal i1 @serial(ptr %env, i64 %T) {
  %at = getelementptr %Env, ptr %env, i32 0, i32 2
  %flags = load i64, ptr %at
  %bit = and i64 %flags, 1
  %forked = icmp ne i64 %bit, 0
  %one = icmp sle i64 %T, 1
  %r = or i1 %forked, %one
  ret i1 %r
}
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
"""

REGION = """
define void @{name}(ptr %env, ptr %body, ptr %ctx, i64 %n) {{
entry:
  %job = alloca [4 x i64]
  %T = call i64 @part_count(ptr %env, i64 %n)
  %one = call i1 @serial(ptr %env, i64 %T)
  br i1 %one, label %alone, label %together
together:
  store ptr %body, ptr %job
  %p1 = getelementptr i64, ptr %job, i64 1
  store ptr %ctx, ptr %p1
  %p2 = getelementptr i64, ptr %job, i64 2
  store i64 %n, ptr %p2
  %p3 = getelementptr i64, ptr %job, i64 3
  store i64 %T, ptr %p3
{fork}
alone:
  call void @parts(ptr %body, ptr %ctx, i64 %n, i64 %T, i64 0, i64 %T, i64 1)
  ret void
done:
  ret void
}}

define internal void @job(ptr %job, i64 %first, i64 %stop, i64 %step) {{
  %body = load ptr, ptr %job
  %p1 = getelementptr i64, ptr %job, i64 1
  %ctx = load ptr, ptr %p1
  %p2 = getelementptr i64, ptr %job, i64 2
  %n = load i64, ptr %p2
  %p3 = getelementptr i64, ptr %job, i64 3
  %T = load i64, ptr %p3
  %end = call i64 @llvm.smin.i64(i64 %stop, i64 %T)
  call void @parts(ptr %body, ptr %ctx, i64 %n, i64 %T, i64 %first, i64 %end, i64 %step)
  ret void
}}
"""

ALONE = PARTS + """
define void @vlug_parallel_alone(ptr %env, ptr %body, ptr %ctx, i64 %n) {
  %T = call i64 @part_count(ptr %env, i64 %n)
  call void @parts(ptr %body, ptr %ctx, i64 %n, i64 %T, i64 0, i64 %T, i64 1)
  ret void
}
"""

# A team may be smaller than asked for (nested regions, limits): its threads take parts in turn.
GOMP = PARTS + REGION.format(name="vlug_parallel_gomp", fork="""
  %T32 = trunc i64 %T to i32
  call void @GOMP_parallel(ptr @team, ptr %job, i32 %T32, i32 0)
  br label %done""") + """
define internal void @team(ptr %job) {
  %t = call i32 @omp_get_thread_num()
  %m = call i32 @omp_get_num_threads()
  %first = sext i32 %t to i64
  %step = sext i32 %m to i64
  call void @job(ptr %job, i64 %first, i64 9223372036854775807, i64 %step)
  ret void
}
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
"""

# torch_parallel_for fails before any part runs, if at all: the parts then run here.
TORCH = PARTS + REGION.format(name="vlug_parallel_torch", fork="""
  %rc = call i32 @torch_parallel_for(i64 0, i64 %T, i64 1, ptr @range, ptr %job)
  %ok = icmp eq i32 %rc, 0
  br i1 %ok, label %done, label %alone""") + """
define internal void @range(i64 %lo, i64 %hi, ptr %job) {
  call void @job(ptr %job, i64 %lo, i64 %hi, i64 1)
  ret void
}

; torch's threads now, at most Env.user of them (0: no limit)
define i64 @vlug_count_torch(ptr %env) {
  %out = alloca i32
  store i32 1, ptr %out
  %rc = call i32 @torch_get_num_threads(ptr %out)
  %n32 = load i32, ptr %out
  %n = zext i32 %n32 to i64
  %at = getelementptr %Env, ptr %env, i32 0, i32 3
  %cap = load i64, ptr %at
  %none = icmp eq i64 %cap, 0
  %least = call i64 @llvm.smin.i64(i64 %n, i64 %cap)
  %r = select i1 %none, i64 %n, i64 %least
  ret i64 %r
}
declare i32 @torch_parallel_for(i64, i64, i64, ptr, ptr)
declare i32 @torch_get_num_threads(ptr)
"""

RUNNER = """
%Env = type { ptr, i64, i64, ptr, ptr, [3 x i64] }

@slots = internal global [16 x i64] zeroinitializer, align 64
@held = internal global i64 0
@vlug_retain = internal global i64 134217728

; A buffer's first page holds its size; what is lent starts behind it.
define internal ptr @acquire(i64 %need) {
entry:
  %a = add i64 %need, 8191
  %size = and i64 %a, -4096
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ %j, %next ]
  %slot = getelementptr i64, ptr @slots, i64 %i
  %peek = load atomic i64, ptr %slot monotonic, align 8
  %empty = icmp eq i64 %peek, 0
  br i1 %empty, label %next, label %take
take:
  %v = atomicrmw xchg ptr %slot, i64 0 acq_rel
  %gone = icmp eq i64 %v, 0
  br i1 %gone, label %next, label %got
got:
  %p = inttoptr i64 %v to ptr
  %has = load i64, ptr %p
  %old = atomicrmw sub ptr @held, i64 %has monotonic
  %fits = icmp uge i64 %has, %size
  br i1 %fits, label %lend, label %small
small:
  call i32 @munmap(ptr %p, i64 %has)
  br label %next
next:
  %j = add i64 %i, 1
  %more = icmp ult i64 %j, 16
  br i1 %more, label %look, label %fresh
fresh:
  ; pages of its own: from malloc, buffers of many sizes between tensors leave holes that nothing fits
  %q = call ptr @mmap(ptr null, i64 %size, i32 3, i32 34, i32 -1, i64 0)
  %null = icmp eq ptr %q, inttoptr (i64 -1 to ptr)
  br i1 %null, label %fail, label %mark
mark:
  store i64 %size, ptr %q
  br label %lend
lend:
  %r = phi ptr [ %p, %got ], [ %q, %mark ]
  %data = getelementptr i8, ptr %r, i64 4096
  ret ptr %data
fail:
  ret ptr null
}

define internal void @release(ptr %data) {
entry:
  %p = getelementptr i8, ptr %data, i64 -4096
  %size = load i64, ptr %p
  %before = atomicrmw add ptr @held, i64 %size monotonic
  %after = add i64 %before, %size
  %most = load atomic i64, ptr @vlug_retain monotonic, align 8
  %much = icmp ugt i64 %after, %most
  br i1 %much, label %drop, label %look
look:
  %i = phi i64 [ 0, %entry ], [ %j, %next ]
  %slot = getelementptr i64, ptr @slots, i64 %i
  %v = ptrtoint ptr %p to i64
  %x = cmpxchg ptr %slot, i64 0, i64 %v acq_rel monotonic
  %in = extractvalue { i64, i1 } %x, 1
  br i1 %in, label %done, label %next
next:
  %j = add i64 %i, 1
  %more = icmp ult i64 %j, 16
  br i1 %more, label %look, label %drop
drop:
  %was = atomicrmw sub ptr @held, i64 %size monotonic
  call i32 @munmap(ptr %p, i64 %size)
  br label %done
done:
  ret void
}

; Bytes kept in the slots. A `most` that is not negative becomes the limit, and all are given back first.
define i64 @vlug_trim(i64 %most) {
entry:
  %keep = icmp slt i64 %most, 0
  br i1 %keep, label %tell, label %set
set:
  store atomic i64 %most, ptr @vlug_retain monotonic, align 8
  br label %look
look:
  %i = phi i64 [ 0, %set ], [ %j, %next ]
  %slot = getelementptr i64, ptr @slots, i64 %i
  %v = atomicrmw xchg ptr %slot, i64 0 acq_rel
  %none = icmp eq i64 %v, 0
  br i1 %none, label %next, label %drop
drop:
  %p = inttoptr i64 %v to ptr
  %size = load i64, ptr %p
  %was = atomicrmw sub ptr @held, i64 %size monotonic
  call i32 @munmap(ptr %p, i64 %size)
  br label %next
next:
  %j = add i64 %i, 1
  %more = icmp ult i64 %j, 16
  br i1 %more, label %look, label %tell
tell:
  %r = load atomic i64, ptr @held monotonic, align 8
  ret i64 %r
}

define i64 @vlug_run(ptr %plan, ptr %outer, ptr %lent) {
entry:
  %env = alloca %Env, align 64
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %env, ptr align 8 %lent, i64 64, i1 false)
  %pcount = getelementptr %Env, ptr %env, i32 0, i32 4
  %count = load ptr, ptr %pcount
  %pthreads = getelementptr %Env, ptr %env, i32 0, i32 1
  %fixed = load i64, ptr %pthreads
  %h1 = getelementptr i64, ptr %plan, i64 1
  %temps = load i64, ptr %h1
  %h2 = getelementptr i64, ptr %plan, i64 2
  %shared = load i64, ptr %h2
  %h3 = getelementptr i64, ptr %plan, i64 3
  %each = load i64, ptr %h3
  %h4 = getelementptr i64, ptr %plan, i64 4
  %most = load i64, ptr %h4
  %h5 = getelementptr i64, ptr %plan, i64 5
  %cap = load i64, ptr %h5
  %steps = load i64, ptr %plan
  %tensors = alloca ptr, i64 %most, align 16
  %ask = icmp ne ptr %count, null
  br i1 %ask, label %asked, label %ready
asked:
  %now = call i64 %count(ptr %env)
  br label %ready
ready:
  %th0 = phi i64 [ %fixed, %entry ], [ %now, %asked ]
  %th1 = call i64 @llvm.smin.i64(i64 %th0, i64 %cap)
  %th = call i64 @llvm.smax.i64(i64 %th1, i64 1)
  store i64 %th, ptr %pthreads
  %parts = mul i64 %each, %th
  %w = add i64 %shared, %parts
  %need = add i64 %temps, %w
  %any = icmp sgt i64 %need, 0
  br i1 %any, label %alloc, label %begin
alloc:
  %mem = call ptr @acquire(i64 %need)
  %failed = icmp eq ptr %mem, null
  br i1 %failed, label %nomem, label %begin
nomem:
  ret i64 -12
begin:
  %base = phi ptr [ null, %ready ], [ %mem, %alloc ]
  %ws = getelementptr i8, ptr %base, i64 %temps
  %first = getelementptr i64, ptr %plan, i64 6
  %some = icmp sgt i64 %steps, 0
  br i1 %some, label %step, label %end
step:
  %s = phi i64 [ 0, %begin ], [ %s1, %stepped ]
  %at = phi ptr [ %first, %begin ], [ %after, %stepped ]
  %fn = load ptr, ptr %at
  %a1 = getelementptr i64, ptr %at, i64 1
  %args = load ptr, ptr %a1
  %a2 = getelementptr i64, ptr %at, i64 2
  %n = load i64, ptr %a2
  %list = getelementptr i64, ptr %at, i64 3
  %after = getelementptr i64, ptr %list, i64 %n
  %has = icmp sgt i64 %n, 0
  br i1 %has, label %tensor, label %go
tensor:
  %t = phi i64 [ 0, %step ], [ %t1, %placed ]
  %pidx = getelementptr i64, ptr %list, i64 %t
  %idx = load i64, ptr %pidx
  %theirs = icmp sge i64 %idx, 0
  br i1 %theirs, label %from, label %own
from:
  %pouter = getelementptr ptr, ptr %outer, i64 %idx
  %po = load ptr, ptr %pouter
  br label %placed
own:
  %off = sub i64 -1, %idx
  %pt = getelementptr i8, ptr %base, i64 %off
  %absent = icmp eq i64 %idx, -9223372036854775808
  %pt1 = select i1 %absent, ptr null, ptr %pt
  br label %placed
placed:
  %ptr = phi ptr [ %po, %from ], [ %pt1, %own ]
  %place = getelementptr ptr, ptr %tensors, i64 %t
  store ptr %ptr, ptr %place
  %t1 = add i64 %t, 1
  %more = icmp slt i64 %t1, %n
  br i1 %more, label %tensor, label %go
go:
  %rc = call i32 %fn(ptr %tensors, ptr %args, ptr %ws, ptr %env)
  %bad = icmp ne i32 %rc, 0
  %s1 = add i64 %s, 1
  %last = icmp sge i64 %s1, %steps
  %stop = or i1 %bad, %last
  br i1 %stop, label %end, label %stepped
stepped:
  br label %step
end:
  %code32 = phi i32 [ 0, %begin ], [ %rc, %go ]
  %code = sext i32 %code32 to i64
  %none = icmp eq ptr %base, null
  br i1 %none, label %done, label %give
give:
  call void @release(ptr %base)
  br label %done
done:
  ret i64 %code
}
declare ptr @mmap(ptr, i64, i32, i32, i32, i64)
declare i32 @munmap(ptr, i64)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""
