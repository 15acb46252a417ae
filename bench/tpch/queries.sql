-- The 22 questions of TPC-H with the validation parameters of its specification, in SQL that DuckDB and
-- DataFusion accept.
-- A line "-- query N" begins a query.

-- query 1
select l_returnflag, l_linestatus, sum(l_quantity) as quantity, sum(l_extendedprice) as base,
    sum(l_extendedprice * (1 - l_discount)) as discounted,
    sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) as charge, avg(l_quantity) as mean_quantity,
    avg(l_extendedprice) as mean_price, avg(l_discount) as mean_discount, count(*) as orders
from lineitem
where l_shipdate <= date '1998-12-01' - interval 90 day
group by all order by l_returnflag, l_linestatus;

-- query 2
with offers as (
    select p_partkey, p_mfgr, s_acctbal, s_name, n_name, s_address, s_phone, s_comment, ps_supplycost,
        min(ps_supplycost) over (partition by p_partkey) as least
    from part join partsupp on p_partkey = ps_partkey join supplier on s_suppkey = ps_suppkey
        join nation on n_nationkey = s_nationkey join region on r_regionkey = n_regionkey
    where p_size = 15 and p_type like '%BRASS' and r_name = 'EUROPE')
select s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment
from offers where ps_supplycost = least
order by s_acctbal desc, n_name, s_name, p_partkey limit 100;

-- query 3
select l_orderkey, sum(l_extendedprice * (1 - l_discount)) as revenue, o_orderdate, o_shippriority
from customer join orders on c_custkey = o_custkey join lineitem on l_orderkey = o_orderkey
where c_mktsegment = 'BUILDING' and o_orderdate < date '1995-03-15' and l_shipdate > date '1995-03-15'
group by all order by revenue desc, o_orderdate, l_orderkey limit 10;

-- query 4
select o_orderpriority, count(*) as orders from orders
where o_orderdate >= date '1993-07-01' and o_orderdate < date '1993-10-01' and exists (
    select 1 from lineitem where l_orderkey = o_orderkey and l_commitdate < l_receiptdate)
group by all order by o_orderpriority;

-- query 5
select n_name, sum(l_extendedprice * (1 - l_discount)) as revenue
from customer join orders on c_custkey = o_custkey join lineitem on l_orderkey = o_orderkey
    join supplier on l_suppkey = s_suppkey and c_nationkey = s_nationkey
    join nation on s_nationkey = n_nationkey join region on n_regionkey = r_regionkey
where r_name = 'ASIA' and o_orderdate >= date '1994-01-01' and o_orderdate < date '1995-01-01'
group by all order by revenue desc;

-- query 6
select sum(l_extendedprice * l_discount) as revenue from lineitem
where l_shipdate >= date '1994-01-01' and l_shipdate < date '1995-01-01'
    and l_discount between 0.05 and 0.07 and l_quantity < 24;

-- query 7
select s.n_name as supplier, c.n_name as customer, extract(year from l_shipdate) as year,
    sum(l_extendedprice * (1 - l_discount)) as volume
from supplier join lineitem on s_suppkey = l_suppkey join orders on o_orderkey = l_orderkey
    join customer on c_custkey = o_custkey join nation s on s_nationkey = s.n_nationkey
    join nation c on c_nationkey = c.n_nationkey
where (s.n_name, c.n_name) in (('FRANCE', 'GERMANY'), ('GERMANY', 'FRANCE'))
    and l_shipdate between date '1995-01-01' and date '1996-12-31'
group by all order by supplier, customer, year;

-- query 8
select extract(year from o_orderdate) as year,
    sum(case when s.n_name = 'BRAZIL' then l_extendedprice * (1 - l_discount) else 0 end)
        / sum(l_extendedprice * (1 - l_discount)) as share
from part join lineitem on p_partkey = l_partkey join supplier on s_suppkey = l_suppkey
    join orders on l_orderkey = o_orderkey join customer on o_custkey = c_custkey
    join nation c on c_nationkey = c.n_nationkey join region on c.n_regionkey = r_regionkey
    join nation s on s_nationkey = s.n_nationkey
where r_name = 'AMERICA' and o_orderdate between date '1995-01-01' and date '1996-12-31'
    and p_type = 'ECONOMY ANODIZED STEEL'
group by all order by year;

-- query 9
select n_name, extract(year from o_orderdate) as year,
    sum(l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity) as profit
from part join lineitem on p_partkey = l_partkey join supplier on s_suppkey = l_suppkey
    join partsupp on ps_suppkey = l_suppkey and ps_partkey = l_partkey
    join orders on o_orderkey = l_orderkey join nation on s_nationkey = n_nationkey
where p_name like '%green%'
group by all order by n_name, year desc;

-- query 10
select c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) as revenue, c_acctbal, n_name,
    c_address, c_phone, c_comment
from customer join orders on c_custkey = o_custkey join lineitem on l_orderkey = o_orderkey
    join nation on c_nationkey = n_nationkey
where o_orderdate >= date '1993-10-01' and o_orderdate < date '1994-01-01' and l_returnflag = 'R'
group by all order by revenue desc, c_custkey limit 20;

-- query 11
with stock as (
    select ps_partkey, sum(ps_supplycost * ps_availqty) as value
    from partsupp join supplier on ps_suppkey = s_suppkey join nation on s_nationkey = n_nationkey
    where n_name = 'GERMANY' group by all)
select ps_partkey, value from stock
where value > (select sum(value) * 0.0001 from stock)
order by value desc, ps_partkey;

-- query 12
select l_shipmode, count(*) filter (where o_orderpriority in ('1-URGENT', '2-HIGH')) as high,
    count(*) filter (where o_orderpriority not in ('1-URGENT', '2-HIGH')) as low
from orders join lineitem on o_orderkey = l_orderkey
where l_shipmode in ('MAIL', 'SHIP') and l_commitdate < l_receiptdate and l_shipdate < l_commitdate
    and l_receiptdate >= date '1994-01-01' and l_receiptdate < date '1995-01-01'
group by all order by l_shipmode;

-- query 13
with counts as (
    select c_custkey, count(o_orderkey) as orders from customer left join orders
        on c_custkey = o_custkey and o_comment not like '%special%requests%'
    group by all)
select orders, count(*) as customers from counts group by all order by customers desc, orders desc;

-- query 14
select 100 * sum(l_extendedprice * (1 - l_discount)) filter (where p_type like 'PROMO%')
    / sum(l_extendedprice * (1 - l_discount)) as share
from lineitem join part on l_partkey = p_partkey
where l_shipdate >= date '1995-09-01' and l_shipdate < date '1995-10-01';

-- query 15
with revenue as (
    select l_suppkey, sum(l_extendedprice * (1 - l_discount)) as total from lineitem
    where l_shipdate >= date '1996-01-01' and l_shipdate < date '1996-04-01' group by all)
select s_suppkey, s_name, s_address, s_phone, total from supplier join revenue on s_suppkey = l_suppkey
where total = (select max(total) from revenue) order by s_suppkey;

-- query 16
select p_brand, p_type, p_size, count(distinct ps_suppkey) as suppliers
from partsupp join part on p_partkey = ps_partkey
where p_brand <> 'Brand#45' and p_type not like 'MEDIUM POLISHED%'
    and p_size in (49, 14, 23, 45, 19, 3, 36, 9) and ps_suppkey not in (
        select s_suppkey from supplier where s_comment like '%Customer%Complaints%')
group by all order by suppliers desc, p_brand, p_type, p_size;

-- query 17
select sum(l_extendedprice) / 7.0 as yearly from lineitem join part on p_partkey = l_partkey
where p_brand = 'Brand#23' and p_container = 'MED BOX' and l_quantity < (
    select 0.2 * avg(l_quantity) from lineitem where l_partkey = p_partkey);

-- query 18
select c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) as quantity
from customer join orders on c_custkey = o_custkey join lineitem on o_orderkey = l_orderkey
where o_orderkey in (select l_orderkey from lineitem group by all having sum(l_quantity) > 300)
group by all order by o_totalprice desc, o_orderdate, o_orderkey limit 100;

-- query 19
select sum(l_extendedprice * (1 - l_discount)) as revenue
from lineitem join part on p_partkey = l_partkey
where l_shipmode in ('AIR', 'AIR REG') and l_shipinstruct = 'DELIVER IN PERSON' and (
    (p_brand = 'Brand#12' and p_container in ('SM CASE', 'SM BOX', 'SM PACK', 'SM PKG')
        and l_quantity between 1 and 11 and p_size between 1 and 5)
    or (p_brand = 'Brand#23' and p_container in ('MED BAG', 'MED BOX', 'MED PKG', 'MED PACK')
        and l_quantity between 10 and 20 and p_size between 1 and 10)
    or (p_brand = 'Brand#34' and p_container in ('LG CASE', 'LG BOX', 'LG PACK', 'LG PKG')
        and l_quantity between 20 and 30 and p_size between 1 and 15));

-- query 20
select s_name, s_address from supplier join nation on s_nationkey = n_nationkey
where n_name = 'CANADA' and s_suppkey in (
    select ps_suppkey from partsupp
    where ps_partkey in (select p_partkey from part where p_name like 'forest%')
        and ps_availqty > (
            select 0.5 * sum(l_quantity) from lineitem
            where l_partkey = ps_partkey and l_suppkey = ps_suppkey
                and l_shipdate >= date '1994-01-01' and l_shipdate < date '1995-01-01'))
order by s_name;

-- query 21
select s_name, count(*) as late
from supplier join lineitem own on s_suppkey = own.l_suppkey join orders on o_orderkey = own.l_orderkey
    join nation on s_nationkey = n_nationkey
where o_orderstatus = 'F' and own.l_receiptdate > own.l_commitdate and n_name = 'SAUDI ARABIA'
    and exists (select 1 from lineitem other
        where other.l_orderkey = own.l_orderkey and other.l_suppkey <> own.l_suppkey)
    and not exists (select 1 from lineitem other
        where other.l_orderkey = own.l_orderkey and other.l_suppkey <> own.l_suppkey
            and other.l_receiptdate > other.l_commitdate)
group by all order by late desc, s_name limit 100;

-- query 22
with chosen as (
    select substring(c_phone, 1, 2) as code, c_acctbal, c_custkey from customer
    where substring(c_phone, 1, 2) in ('13', '31', '23', '29', '30', '18', '17'))
select code, count(*) as customers, sum(c_acctbal) as balance from chosen
where c_acctbal > (select avg(c_acctbal) from chosen where c_acctbal > 0)
    and not exists (select 1 from orders where o_custkey = c_custkey)
group by all order by code;
